"""A peer whose process is frozen, while its system goes on answering for it, is noticed as a dead one is."""

import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest

from espalier.clients.messages.frames import KEEPALIVE_SECONDS
from tests.app.runs import ROOT
from tests.strategies.split.streams import serving

CLIENT = """
import pickle, sys
from espalier.clients.streams import open_stream
with open_stream(pickle.load(sys.stdin.buffer), None) as stream:
    stream.exchange(b"")
"""


class Served:
    """A stream that gets no answer."""

    def __init__(self):
        self.is_open, self.is_closed = threading.Event(), threading.Event()

    def exchange(self, frame):
        self.is_open.set()
        self.is_closed.wait()

    def closed(self):
        self.is_closed.set()


@pytest.mark.deploy
def test_a_stream_of_a_frozen_process_is_over_after_twice_the_keepalive():
    served = Served()
    with serving() as server:
        ticket = server.expect_served(lambda cancel: served, 2**20).told
        with subprocess.Popen([sys.executable, "-c", CLIENT], stdin=subprocess.PIPE, cwd=ROOT) as client:
            pickle.dump(ticket, client.stdin)
            client.stdin.close()
            assert served.is_open.wait(60)
            client.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            assert served.is_closed.wait(4 * KEEPALIVE_SECONDS)
            assert time.monotonic() - began < 2.5 * KEEPALIVE_SECONDS
            client.kill()
