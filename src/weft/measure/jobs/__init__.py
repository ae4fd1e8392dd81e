"""Jobs for real: processes that sleep for the computation and send over TCP."""
