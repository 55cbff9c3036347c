"""`python -m baechi`: the command line."""

import sys

from baechi.cli import main

sys.exit(main())
