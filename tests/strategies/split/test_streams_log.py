"""What strangers at the port of the streams make a program write."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SERVES = """
import espalier.app
import os, socket, time
from espalier.clients.stream import measure_link
from tests.strategies.split.streams import HOST, serving

with serving() as server:
    for text in [b"GET / HTTP/1.1\\r\\n\\r\\n", b"\\x16\\x03\\x01" + bytes(200), os.urandom(200)] * 20:
        with socket.create_connection((HOST, server.port)) as stranger:
            stranger.sendall(text)
    assert measure_link(server.expect_probe().told) > 0
    time.sleep(0.5)
print("own line", file=__import__("sys").stderr)
"""


def test_strangers_who_speak_no_tls_cost_no_line_each():
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    run = subprocess.run(
        [sys.executable, "-c", SERVES], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert run.stderr == "own line\n"
