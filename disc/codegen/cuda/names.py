"""Names in the text of every kernel."""

NAME = "kernel"  # of every kernel's function: equal texts are one kernel
FAULT, SCRATCH = "fault", "scratch"  # parameters
