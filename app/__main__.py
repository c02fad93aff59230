"""``python -m app``: see `espalier.app.command_line`."""

import sys

from espalier.app.command_line import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
