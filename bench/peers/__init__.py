"""Programs that do the same work as ours, one module or directory each."""
