"""python -m gradwire: the command line."""

import sys

from gradwire.cli.main import main

sys.exit(main())
