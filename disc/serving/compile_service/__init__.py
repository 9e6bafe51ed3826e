"""The compile service: the server, its confined jobs, and its client."""
