"""Closed forms of rate, latency, throughput and queueing, and their fits to observed values."""

from weft.model.fit import (
    ErrorSummary,
    Fit,
    FloatArray,
    Form,
    Input,
    Parameter,
    Range,
    Unknown,
    fit,
)

__all__ = [
    "ErrorSummary",
    "Fit",
    "FloatArray",
    "Form",
    "Input",
    "Parameter",
    "Range",
    "Unknown",
    "fit",
]
