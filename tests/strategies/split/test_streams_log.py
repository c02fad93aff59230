"""What strangers at the port of the streams make a program write."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SERVES = """
import espalier.app
import os, socket, ssl, sys, time
from espalier.clients.messages.frames import METHOD
from espalier.clients.streams import measure_link
from tests.strategies.split.streams import HOST, serving

def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

def field(*texts):
    return bytes(1) + b"".join(bytes([len(text)]) + text.encode() for text in texts)

fields = [(":method", "POST"), (":scheme", "https"), (":path", METHOD), (":authority", "x"), ("grpc-timeout", "soon")]
preface = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + frame(4, 0, 0, b"")
anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
anybody.set_alpn_protocols(["h2"])
with serving() as server:
    for text in [b"GET / HTTP/1.1\\r\\n\\r\\n", b"\\x16\\x03\\x01" + bytes(200), os.urandom(200)] * 20:
        with socket.create_connection((HOST, server.port)) as stranger:
            stranger.sendall(text)
    for text in [preface + frame(1, 4, 1, b"".join(field(*one) for one in fields)), os.urandom(200)] * 20:
        with anybody.wrap_socket(socket.create_connection((HOST, server.port))) as stranger:
            stranger.sendall(text)
            stranger.recv(1)
    assert measure_link(server.expect_probe().told) > 0
    time.sleep(0.5)
print("own line", file=sys.stderr)
"""


def test_strangers_who_speak_nonsense_cost_no_line_each():
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    run = subprocess.run(
        [sys.executable, "-c", SERVES], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "own line\n")
