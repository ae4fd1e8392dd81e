"""What the controller decides: functions of values, without clock or I/O."""
