"""Applications that share a testbed's links: schemes to share, measured beside the models."""
