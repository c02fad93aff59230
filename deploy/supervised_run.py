"""Run an app on a SuperLink that is there already, for as long as this script runs.

``python deploy/supervised_run.py APP SUPERLINK [OPTIONS OF flwr run]`` streams the run's log and ends with the run. If
it is itself ended, it stops the run. So a supervisor, systemd for one, can keep an edge host's run going.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from flwr_run import run_app


def main(arguments: Sequence[str]) -> int:
    """Run as the command line says and return the exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    app, superlink, *options = arguments
    return run_app(app, options, {**os.environ, "PATH": path}, superlink)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
