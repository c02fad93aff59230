"""The edge's end of the local socket."""

from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError, ThreadPoolExecutor
from logging import getLogger
from pathlib import Path
from queue import Empty, SimpleQueue
from secrets import token_hex

import grpc

from espalier.app.ground.errors import bad_value
from espalier.app.reports.owner import disown, own
from espalier.clients.device.edge_socket import ANSWER, OPTIONS, SERVICE, SOCKET, TYPE, address_of, folder_fault

logger = getLogger("espalier")

THREADS = 4  # one holds a request that waits to be served, or that has not arrived whole


class EdgeListener:
    """Listens for gateways in a private folder, which it makes.

    Parameters
    ----------
    folder : Path
        The folder; it holds ``socket``, and ``lock``, which says which process listens.

    Raises
    ------
    UserError
        If the folder is open to others, belongs to somebody else, has too long a path, can't be written, or if another
        run listens there.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / SOCKET
        self._requests: SimpleQueue[tuple[str, bytes, Future[bytes]]] = SimpleQueue()
        handlers = {ANSWER: grpc.unary_unary_rpc_method_handler(self._receive)}
        self._server = grpc.server(
            ThreadPoolExecutor(THREADS, "edge-listener"),
            [grpc.method_handlers_generic_handler(SERVICE, handlers)],
            options=OPTIONS,
        )
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if fault := folder_fault(folder):
                raise bad_value("deploy.edge-folder", str(folder), fault)
            self._lock = own(folder, "deploy.edge-folder")
            try:
                # Whoever finds it under its final name can connect; and gRPC removes it in the end by this one.
                new = folder / token_hex(len(SOCKET) // 2)
                self._server.add_insecure_port(address_of(new))
                self._server.start()
                new.replace(self._path)
            except BaseException:
                self._server.stop(None).wait()
                new.unlink(missing_ok=True)
                disown(self._lock)
                raise
        except OSError as error:
            raise bad_value(
                "deploy.edge-folder", str(folder), f"a folder that can be written ({error.strerror or error})"
            ) from None
        except RuntimeError:  # gRPC's, which can't make the socket; why, it says if GRPC_VERBOSITY=ERROR
            raise bad_value("deploy.edge-folder", str(folder), "a folder that can be written") from None

    def serve_one(self, answer: Callable[[str, bytes], bytes], timeout_seconds: float) -> bool:
        """Wait for a request and answer it.

        Parameters
        ----------
        answer : Callable[[str, bytes], bytes]
            Called with the message type and the request, returns the reply.
        timeout_seconds : float
            How long to wait for a request.

        Returns
        -------
        bool
            Whether one came.
        """
        try:
            message_type, request, reply = self._requests.get(timeout=timeout_seconds)
        except Empty:
            return False
        if not reply.cancelled():
            made = answer(message_type, request)
            try:
                reply.set_result(made)
            except InvalidStateError:
                logger.warning("gateway left before it had the answer to %s", message_type)
        return True

    def close(self) -> None:
        """Stop listening."""
        self._path.unlink(missing_ok=True)  # while it is known to be its own
        self._server.stop(None).wait()
        disown(self._lock)

    def __enter__(self) -> "EdgeListener":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _receive(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Hand a request to `serve_one` and wait for the reply, in a thread of gRPC's."""
        reply: Future[bytes] = Future()
        if not context.add_callback(reply.cancel):  # when the gateway leaves, and when the run ends
            return b""  # it has left
        self._requests.put((str(dict(context.invocation_metadata()).get(TYPE)), request, reply))
        try:
            return reply.result()
        except CancelledError:
            return b""  # to nobody
