"""The settings to use here: measure little, fit the models, recommend, and prove it."""
