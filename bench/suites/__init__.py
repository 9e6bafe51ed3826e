"""One module per suite; each has `run(job) -> Result`, called in a process of its own by `bench.worker`."""
