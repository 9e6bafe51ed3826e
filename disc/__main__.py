"""`python -m disc`: the command line."""

import sys

from disc.cli import main

sys.exit(main())
