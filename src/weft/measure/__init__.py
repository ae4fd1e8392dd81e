"""Measure real fabrics."""
