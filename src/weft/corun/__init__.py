"""Applications that share a testbed's links: three ways to share, measured beside the models."""
