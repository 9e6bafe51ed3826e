"""`python -m disc.cli`: the command line."""

import sys

from disc.cli.main import main

sys.exit(main())
