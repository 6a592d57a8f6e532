"""Serves exported models by TensorFlow Serving's REST and gRPC protocols."""
