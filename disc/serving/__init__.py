"""Serving of compiled models: needs the runtime, gRPC and NumPy; neither torch nor MLIR is imported."""
