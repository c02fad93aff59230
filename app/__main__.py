"""``python -m app``: see `espalier.app.command_line`."""

import sys

from espalier.app.entry_point import entry

if __name__ == "__main__":
    sys.exit(entry())
