"""A small server that shows runs while they go on: to browsers of this machine alone, or to those who have a token."""

import ipaddress
import re
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from hmac import compare_digest
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from espalier.app.ground.addresses import lacks_address
from espalier.app.ground.errors import UserError, bad_value
from espalier.app.page.connected import count_connected
from espalier.app.page.html import data_json, page_html, policy
from espalier.app.page.run_data import RUNNING
from espalier.app.page.runs import Runs

EVERY_SECONDS = 2.0  # asks a page whether anything is new
SHARE = 0.05  # of a core that reading runs may take: what takes long is read less often
LOCAL = "127.0.0.1"
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass
class Source:
    """What the page shows, read again when somebody asks and it is time to.

    Parameters
    ----------
    runs : Runs
        Read the folders.

    Attributes
    ----------
    version : int
        Counts what was new.
    """

    runs: Runs
    version: int = field(default=0, init=False)
    _json: str = field(default="", init=False)
    _ports: dict[int, int | None] = field(default_factory=dict, init=False)  # nodes counted at each
    _due: float = field(default=0.0, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def latest(self) -> tuple[int, str]:
        """Return the version of the data, and the data as JSON.

        Raises
        ------
        UserError
            If what is there is nothing that a run writes.
        """
        with self._lock:
            if (begin := time.monotonic()) >= self._due:
                used = time.thread_time()
                try:
                    self._read()
                finally:
                    self._due = begin + max(EVERY_SECONDS / 2, (time.thread_time() - used) / SHARE)
            return self.version, self._json

    def _read(self) -> None:
        has_news = self.runs.refresh() or not self.version
        if not has_news and not self._ports:
            return
        told = self.runs.data()
        counts = {}
        for own in told:
            if own["devices"] and own["devices"]["port"] and own["state"] == RUNNING:
                port = own["devices"]["port"]
                counts[port] = own["devices"]["count"] = count_connected(port)
        if not has_news and counts == self._ports:
            return
        self._ports = counts
        self.version += 1
        self._json = data_json(told, {"version": self.version, "every_seconds": EVERY_SECONDS})


class Server(ThreadingHTTPServer):
    """Serves the page, and its data as JSON.

    Parameters
    ----------
    host, port : str, int
        Where.
    source : Source
        What.
    token : str
        What a request has to name; nothing: none has to.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, source: Source, token: str) -> None:
        self.source = source
        self.token = token
        self.is_local = is_loopback(host)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Handler)

    @property
    def url(self) -> str:
        """What to open in a browser."""
        host, port = str(self.server_address[0]), self.server_address[1]
        query = f"?token={self.token}" if self.token else ""
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/{query}"


class Handler(BaseHTTPRequestHandler):
    """Answers a browser."""

    server: Server
    timeout = 30  # seconds for a request to arrive
    server_version = "espalier"
    sys_version = ""

    def handle(self) -> None:
        """Answer what a browser asks; one that has gone needs no answer, and nobody a line of it."""
        with suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        """Answer with the page, or its data."""
        if not self._is_known_host():
            self._answer(HTTPStatus.FORBIDDEN, "open the page by the address that espalier watch prints\n")
            return
        try:
            parts = urlsplit(self.path)
            asked = parse_qs(parts.query)
        except ValueError:
            self._answer(HTTPStatus.BAD_REQUEST, "this is no address\n")
            return
        if self.server.token and not compare_digest(_first(asked, "token").encode(), self.server.token.encode()):
            self._answer(HTTPStatus.FORBIDDEN, "this page needs ?token=, as espalier watch prints it\n")
        elif parts.path not in ("/", "/data.json"):
            self._answer(HTTPStatus.NOT_FOUND, "there is only the page\n")
        else:
            self._send_latest(parts.path, _first(asked, "have"))

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of requests."""

    def _send_latest(self, path: str, have: str) -> None:
        """Send the page, or its data unless the browser has their version."""
        try:
            version, data = self.server.source.latest()
        except UserError as error:  # a file is damaged, or was removed
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}\n")
            return
        if path == "/":
            self._answer(HTTPStatus.OK, page_html(data, is_live=True), "text/html")
        elif have == str(version):
            self._answer(HTTPStatus.NO_CONTENT, "")
        else:
            self._answer(HTTPStatus.OK, data, "application/json")

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        body = text.encode()
        self.send_response(status)
        headers = {**HEADERS, "Content-Security-Policy": f"{policy(is_live=True)}; frame-ancestors 'none'"}
        for name, value in headers.items():
            self.send_header(name, value)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
        try:
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # the browser has gone
            self.close_connection = True

    def _is_known_host(self) -> bool:
        """Return whether the request names this machine: another site's name may lead here, and its page may ask."""
        name = re.sub(r":\d+$", "", self.headers.get("Host", "")).strip("[]")
        return not self.server.is_local or name == "localhost" or is_loopback(name)


def opened(host: str, port: int, token: str, source: Source) -> Server:
    """Return a server that listens.

    Raises
    ------
    UserError
        If the port is not free there, or there is no such address.
    """
    try:
        return Server(host, port, source, token)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        if lacks_address(error):
            raise bad_value("--host", host, f"an address of this machine ({why})") from None
        raise bad_value("--port", port, f"a free port at {host} ({why}), or 0 for any that is free") from None
    except OverflowError:
        raise bad_value("--port", port, "a number from 0 to 65535") from None


def is_loopback(host: str) -> bool:
    """Return whether an address is one of this machine that others can't reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _first(asked: dict[str, list[str]], name: str) -> str:
    return asked.get(name, [""])[0]
