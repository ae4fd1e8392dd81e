"""`python -m weft.cli` is `weft`."""

import sys

from weft.cli import main

sys.exit(main())
