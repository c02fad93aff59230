"""The suite passes as a background job too, whose SIGINT is ignored."""

import signal
import subprocess
import sys

from tests.interrupts import interruptible

SHOW = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"


def is_interruptible() -> bool:
    done = subprocess.run([sys.executable, "-c", SHOW], check=True, capture_output=True, text=True)
    return done.stdout == "True\n"


def test_programs_take_interrupts_though_the_tests_ignore_them():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert not is_interruptible()
        with interruptible():
            assert is_interruptible()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_every_test_starts_programs_that_take_interrupts():
    assert is_interruptible()
