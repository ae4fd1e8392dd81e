"""The store of a controller: its state on disk."""
