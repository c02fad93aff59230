"""Where the command ``espalier`` begins, before any library is imported."""

import os
import shlex
import signal
import sys
from contextlib import suppress


def entry() -> int:
    """Run the console command ``espalier``; an interrupt that nobody else has a line for gets one."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else somebody wants none
    if is_default:
        signal.signal(signal.SIGINT, lambda *_: os._exit(interrupted()))  # a library that is half imported fails anyhow
    if not sys.flags.safe_path:
        with suppress(OSError):  # of a folder that was removed
            sys.path.append(os.getcwd())  # last, so that nothing there hides a library
    from espalier.app.ground.imports import uncollected

    with uncollected():
        from espalier.app.command_line import command_of
    command = command_of(sys.argv[1:])
    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return command()
    except KeyboardInterrupt:
        return interrupted()


def interrupted() -> int:
    """Say how to go on and return the exit code."""
    print(f"interrupted; to go on: {shlex.join(['espalier', *sys.argv[1:]])}", file=sys.stderr, flush=True)
    return 130
