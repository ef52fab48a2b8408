"""What makes a process a service: settings, log, gRPC server and channels."""
