"""`python -m keyfold`: the command line."""

import sys

from keyfold._cli import main

if __name__ == "__main__":
    sys.exit(main())
