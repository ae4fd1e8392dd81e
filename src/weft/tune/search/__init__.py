"""The search for the best settings: design, measure, fit, recommend, confirm."""
