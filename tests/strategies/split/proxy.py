"""A proxy on the way of streams that spoils them: gRPC takes it from the environment variable ``grpc_proxy``."""

import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Lock, Thread

CHUNK_BYTES = 16384
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what was not sent is thrown away, and the peer hears a reset


@dataclass(frozen=True)
class StreamFault:
    """What befalls one connection.

    Attributes
    ----------
    kind : str
        ``"drop"`` resets it, ``"truncate"`` passes half of what has come and ends it, ``"delay"`` holds what has come.
    direction : str
        ``"up"``, from the client, or ``"down"``.
    after_bytes : int
        How many bytes pass that way before.
    seconds : float
        How long it is held.
    """

    kind: str
    direction: str
    after_bytes: int
    seconds: float = 0.0


class StreamProxy:
    """Passes connections on, to where their HTTP CONNECT says; each takes at most one of the faults that wait.

    Parameters
    ----------
    struck : Callable[[StreamFault], object]
        Told of every fault that came to pass, in a thread of the connection's.
    most_waiting : int, optional (default: None)
        The oldest of more faults than this that wait are forgotten.
    bits_per_second : Mapping[str, float], optional (default: None)
        The most that a connection passes, by direction; None passes all at once.

    Attributes
    ----------
    address : str
        For ``grpc_proxy``.
    passed : Counter[str]
        Bytes that it has passed on, by direction.
    """

    def __init__(
        self,
        struck: Callable[[StreamFault], object] = lambda fault: None,
        most_waiting: int | None = None,
        bits_per_second: Mapping[str, float] | None = None,
    ) -> None:
        self._rates = bits_per_second or {}
        self.passed: Counter[str] = Counter()
        self._struck = struck
        self._flows = Event()
        self._flows.set()
        self._waiting: deque[StreamFault] = deque(maxlen=most_waiting)
        self._lock = Lock()
        self._is_closed = False
        self._open: set[socket.socket] = set()
        self._threads: list[Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = Thread(target=self._accept, name="proxy", daemon=True)
        self._accepting.start()

    def add(self, fault: StreamFault) -> None:
        """Let a fault befall the next connection."""
        with self._lock:
            self._waiting.append(fault)

    def forgive(self) -> None:
        """Forget the faults that wait."""
        with self._lock:
            self._waiting.clear()

    def cut(self) -> None:
        """Pass nothing on, in any connection, as a network that is down."""
        self._flows.clear()

    def mend(self) -> None:
        """Pass on what has come meanwhile, and what comes."""
        self._flows.set()

    def close(self) -> None:
        """End all connections."""
        self.mend()
        with self._lock:
            self._is_closed = True
            connected = list(self._open)
        for end in (self._listener, *connected):
            _shut(end)
        self._accepting.join()
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._threads.append(Thread(target=self._serve, args=(client,), name="proxy", daemon=True))
            self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            host, port = _target(client).rsplit(":", 1)
            with socket.create_connection((host, int(port))) as server:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                with self._lock:
                    if self._is_closed:
                        return
                    self._open |= {client, server}
                    fault = self._waiting.popleft() if self._waiting else None
                down = Thread(target=self._pass, args=(server, client, "down", fault), name="proxy", daemon=True)
                down.start()
                self._pass(client, server, "up", fault)
                down.join()
                with self._lock:
                    self._open -= {client, server}

    def _pass(self, source: socket.socket, sink: socket.socket, direction: str, fault: StreamFault | None) -> None:
        """Pass what comes one way; whoever of both directions ends first ends both."""
        due = fault if fault and fault.direction == direction else None
        passed, free_at = 0, time.monotonic()
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                self._flows.wait()
                if due and passed + len(data) > due.after_bytes:
                    self._struck(due)
                    if due.kind == "delay":
                        time.sleep(due.seconds)
                    elif due.kind == "truncate":
                        sink.sendall(data[: len(data) // 2])
                        break
                    else:
                        for end in (source, sink):
                            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                        break
                    due = None
                if rate := self._rates.get(direction):
                    free_at = max(free_at, time.monotonic()) + 8 * len(data) / rate
                    time.sleep(max(free_at - time.monotonic(), 0.0))
                sink.sendall(data)
                passed += len(data)
                with self._lock:
                    self.passed[direction] += len(data)
            else:
                if due:
                    self.add(due)  # the connection ended first
        _shut(source)
        _shut(sink)


def _target(client: socket.socket) -> str:
    """Return where the head of a CONNECT request wants to go."""
    head = b""
    while b"\r\n\r\n" not in head:
        data = client.recv(CHUNK_BYTES)
        if not data or len(head) > CHUNK_BYTES:
            raise OSError("no CONNECT request")
        head += data
    return head.split()[1].decode()


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
