"""The inference protocol over gRPC."""
