"""`python -m disc`: the command."""

import sys

from disc.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
