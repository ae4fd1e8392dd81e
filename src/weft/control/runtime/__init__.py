"""The running controller: its threads, its drivers, its configuration."""
