"""The inference protocol, the status page and the metrics over HTTP."""
