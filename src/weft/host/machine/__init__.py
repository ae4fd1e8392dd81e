"""This machine: clock, processors, memory, devices, counters, noise."""
