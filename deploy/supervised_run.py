"""Run an app on a SuperLink that is there already, for as long as this script runs.

``python deploy/supervised_run.py APP SUPERLINK [OPTIONS OF flwr run]`` streams the run's log and ends with the run. If
it is itself ended, it stops the run. So a supervisor, systemd for one, can keep an edge host's run going. The SuperLink
is this run's alone: one that an earlier start could not stop, since the SuperLink did not answer, is stopped first.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from flwr_run import run_app, runs_going_on, stop_run


def main(arguments: Sequence[str]) -> int:
    """Run as the command line says and return the exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    app, superlink, *options = arguments
    environment = {**os.environ, "PATH": path}
    for run_id in runs_going_on(environment, [superlink]):
        print(f"stopping run {run_id}, which an earlier start has left", flush=True)
        stop_run(run_id, environment, [superlink])
    return run_app(app, options, environment, superlink)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
