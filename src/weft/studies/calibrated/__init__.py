"""The models of `weft.model` fitted to published tables."""
