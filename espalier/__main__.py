"""``python -m espalier`` is ``python -m app`` in the project's tree, and the command ``espalier``."""

import sys

from espalier.app.entry_point import entry

if __name__ == "__main__":
    sys.exit(entry())
