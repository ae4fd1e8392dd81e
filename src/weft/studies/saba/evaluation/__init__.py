"""Saba's evaluation at flow level: set-ups, ways to share, speedups and verdicts."""
