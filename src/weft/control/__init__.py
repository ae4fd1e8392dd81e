"""Who gets the bandwidth: the policy (pure), and what applies it."""
