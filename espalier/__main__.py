"""``python -m espalier`` is ``python -m app`` in the project's tree, and the command ``espalier``."""

import sys

from espalier.app.command_line import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
