"""weft: measure, model, tune, simulate and control high-performance fabrics."""

__version__ = "0.1.0"
