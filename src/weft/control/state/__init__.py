"""The state of a controller and every event that changes it. Pure: no clock, no I/O."""
