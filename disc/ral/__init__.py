"""The runtime: loads artifacts and runs them. Needs NumPy only."""

import os

from disc.errors import TargetError

if os.uname().machine != "x86_64":
    raise TargetError(f"disc's runtime is for x86-64 CPUs, alone or beside NVIDIA GPUs; this machine's is {os.uname().machine}")
