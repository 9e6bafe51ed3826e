"""Measurements of disc against its peers: `python -m bench.run --help`."""
