"""weft: measure, model, simulate and share high-performance fabrics."""

__version__ = "0.1.0"
