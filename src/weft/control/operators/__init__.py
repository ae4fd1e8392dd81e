"""What operators ask of a controller: explanations, forecasts, proposals, trials."""
