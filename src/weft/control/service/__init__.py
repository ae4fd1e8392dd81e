"""The controller's service: its calls over gRPC, and as JSON over a Unix socket."""
