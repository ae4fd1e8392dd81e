"""weft: simulate high-performance fabrics; measurement, models and control will join."""

__version__ = "0.1.0"
