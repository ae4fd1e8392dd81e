"""Plans: flows between many hosts, started together."""
