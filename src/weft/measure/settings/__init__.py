"""Settings of a test: their values, sweeps, placement, and what cannot be measured."""
