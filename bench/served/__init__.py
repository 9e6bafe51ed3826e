"""What `bench.serving` measures of `disc serve`, one module per suite."""
