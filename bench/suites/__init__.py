"""One module per suite; each has `run(job) -> list[Result]`, called in a process of its own by `bench.worker`."""
