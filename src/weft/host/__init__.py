"""What this machine is and can do: clock, processors, memory, devices, counters, noise."""
