"""Python starts this by itself where its folder is on PYTHONPATH: devices 0 and 1 lie in the third stream they open."""

import os
import struct
import sys
from pathlib import Path

HONEST_STREAMS = 2


def other_shape(frame: bytes) -> bytes:
    """Return a frame that says to have one row more in each sample's activations."""
    (rows,) = struct.unpack_from("<I", frame, 23)  # behind the header of 19 bytes and the number of samples
    return frame[:23] + struct.pack("<I", rows + 1) + frame[27:]


def oversized(frame: bytes) -> bytes:
    """Return a frame of 64 MiB and more."""
    return frame + bytes(2**26)


LIES = {"flower-0": other_shape, "flower-1": oversized}


def lie_in_streams(home: Path) -> None:
    """Let the channels that this process opens count its device's streams, and spoil the frames of the third."""
    import grpc

    open_channel, counter = grpc.secure_channel, home / "streams-opened"

    class Liar(grpc.StreamStreamClientInterceptor):
        def intercept_stream_stream(self, continuation, details, frames):
            if details.method == "/espalier.CutLayer/Stream":
                opened = 1 + int(counter.read_text() if counter.exists() else 0)
                counter.write_text(str(opened))
                frames = map(LIES[home.name], frames) if opened == 1 + HONEST_STREAMS else frames
            return continuation(details, frames)

    grpc.secure_channel = lambda *args, **options: grpc.intercept_channel(open_channel(*args, **options), Liar())


if any("flwr-clientapp" in argument for argument in sys.orig_argv):
    home = Path(os.environ["FLWR_HOME"])
    if home.name in LIES:
        lie_in_streams(home)
