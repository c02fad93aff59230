"""``python -m app``: see `espalier.app.command_line`."""

import sys

from espalier.__main__ import entry

if __name__ == "__main__":
    sys.exit(entry())
