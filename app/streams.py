"""The streams of a run's clients, for split training and to measure links: certificate, server and transports."""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import torch
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from espalier.app.algorithms import checked_cuts
from espalier.app.certificates import is_valid_for, self_signed
from espalier.app.config import RunConfig
from espalier.app.errors import UserError, bad_value
from espalier.app.reports.bytes import ByteMeter
from espalier.app.tasks.family import family
from espalier.clients.messages.frames import Format
from espalier.clients.messages.profile import ProfileQuery
from espalier.strategies.split.edges import cut_shapes
from espalier.strategies.split.stream import StreamServer, Ticket
from espalier.strategies.split.transports import StreamTransport

# Its key never leaves this process, and an edge's host may run for years.
CERTIFICATE_DAYS = 3650
MOST_FRAME_BYTES = 2**31 - 1
# There clients run one after the other: those that are not there yet will not come.
IN_PROCESS_PATIENCE_SECONDS = 1.0

LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
HOST_NAME = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*", re.IGNORECASE)


@dataclass(frozen=True)
class Streams:
    """Accepts the streams of a run's clients.

    Parameters
    ----------
    config : RunConfig
        The run.
    server : StreamServer
        Started.
    """

    config: RunConfig
    server: StreamServer

    def transport(self, meter: ByteMeter, edge: str) -> StreamTransport:
        """Return an edge's transport, whose bytes are counted by `meter`."""
        config = self.config
        return StreamTransport(
            self.server,
            payload=config.stream_payload,
            timeout_seconds=config.stream_timeout,
            patience_seconds=IN_PROCESS_PATIENCE_SECONDS if config.engine == "in-process" else config.stream_timeout,
            on_bytes=partial(meter.on_bytes, edge),
        )

    @contextmanager
    def probes(self) -> Iterator[Callable[[int], ProfileQuery]]:
        """Give nodes tickets to measure their links with: inside, asks them by node id, see `ask_profiles`."""
        tickets: list[Ticket] = []

        def ask(node_id: int) -> ProfileQuery:
            tickets.append(self.server.expect_probe())
            return ProfileQuery(measure=True, ticket=tickets[-1].told)

        try:
            yield ask
        finally:
            for ticket in tickets:
                ticket.forget()


def trains_by_stream(config: RunConfig) -> bool:
    """Return whether a run's mini-batches travel in streams to this host."""
    return config.split_transport == "stream" and config.is_split and config.role != "cloud"


def measures(config: RunConfig) -> bool:
    """Return whether a run's clients measure their links to this host."""
    return config.resources == "measured" and config.role != "cloud"


@contextmanager
def streams_of(config: RunConfig) -> Iterator[Streams | None]:
    """Accept streams while a run lasts; None for a run without any.

    Raises
    ------
    UserError
        If certificate or key can't be used, or the port is taken.
    """
    if not (trains_by_stream(config) or measures(config)):
        yield None
        return
    address = checked_address(config)
    key, certificate = (
        given_certificate(config) if config.stream_certificate else self_signed(address, CERTIFICATE_DAYS)
    )
    try:
        server = StreamServer(
            key,
            certificate,
            address=address,
            listen_on=listen_on(address),
            port=config.stream_port,
            max_frame_bytes=largest_frame_bytes(config) if trains_by_stream(config) else 0,
            max_streams=config.edge_clients if config.role == "edge" else config.num_clients,
        )
    except RuntimeError:
        raise bad_value("stream-port", config.stream_port, f"a free port of {listen_on(address)}, or 0") from None
    with server:
        yield Streams(config, server)


def largest_frame_bytes(config: RunConfig) -> int:
    """Return the bytes of the largest frame that a client of this run may send."""
    shapes = cut_shapes(family(config).new_model(config), family(config).input_shape(config))
    form = Format(config.stream_payload, torch.float32)
    return min(max(form.frame_bytes(config.batch_size, shapes[cut]) for cut in checked_cuts(config)), MOST_FRAME_BYTES)


def checked_address(config: RunConfig) -> str:
    """Return ``stream-address``; UserError if it is neither an IP address nor a host's name."""
    address = config.stream_address
    try:
        return str(ip_address(address))
    except ValueError:
        if HOST_NAME.fullmatch(address):
            return address
    allowed = "the name or IP address of this host as clients know it, without a port"
    raise bad_value("stream-address", address, allowed)


def listen_on(address: str) -> str:
    """Return the network interface to listen on: this host's own where clients are on it too, else all."""
    try:
        own = ip_address(address).is_loopback
    except ValueError:
        own = address == "localhost"
    if own:
        return f"[{address}]" if ":" in address else address
    return "[::]" if socket.has_dualstack_ipv6() else "0.0.0.0"


def given_certificate(config: RunConfig) -> tuple[bytes, bytes]:
    """Return the key and the certificate that the config names, as PEM; UserError if they are not a pair."""
    key, certificate = (
        _read("stream-key", config.stream_key),
        _read("stream-certificate", config.stream_certificate),
    )
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        own = parsed.public_key()
    except ValueError:
        raise bad_value("stream-certificate", config.stream_certificate, "a PEM file with a certificate") from None
    if not is_valid_for(parsed, config.stream_address):
        allowed = f"a certificate that is valid today, for stream-address = {config.stream_address!r}"
        raise bad_value("stream-certificate", config.stream_certificate, allowed)
    try:
        given = serialization.load_pem_private_key(key, password=None).public_key()
    except (ValueError, TypeError):
        raise bad_value("stream-key", config.stream_key, "a PEM file with a private key that has no password") from None
    if given != own:
        raise bad_value("stream-key", config.stream_key, f"the private key of {config.stream_certificate}")
    return key, certificate


def _read(key: str, value: str) -> bytes:
    try:
        return Path(value).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"{key} = {value!r}: can't be read ({error.strerror})") from None
