"""Closed forms of rate, latency, throughput and saturation, and their fits to observed values."""
