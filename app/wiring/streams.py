"""The streams of a run's clients, for mini-batches, to measure links and to stay: certificate, server, transports."""

import re
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from flwr.serverapp import Grid
from torch import nn

from espalier.app.ground.certificates import is_valid_for, self_signed
from espalier.app.ground.errors import UserError, bad_value
from espalier.app.meters.bytes import ByteMeter
from espalier.app.settings.sections import StreamSettings
from espalier.clients.messages.frames import MOST_FRAME_BYTES, Format
from espalier.clients.messages.profile import ProfileQuery
from espalier.clients.shared.cut import Cut
from espalier.clients.shared.lazy_layers import lacks_weights
from espalier.strategies import StayGrid
from espalier.strategies.split.shapes import forms_at_cuts
from espalier.strategies.split.stream import StreamServer, Ticket
from espalier.strategies.split.stream_transport import StreamTransport

# Its key never leaves this process, and an edge's host may run for years.
CERTIFICATE_DAYS = 3650

MODELS_IN_A_MESSAGE = 4  # weights and corrections, with room for those of a strategy of one's own
BESIDE_MODELS_BYTES = 2**26

LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
HOST_NAME = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*", re.IGNORECASE)


@dataclass(frozen=True)
class Streams:
    """Accepts the streams of a run's clients.

    Parameters
    ----------
    settings : StreamSettings
        Section of the run config.
    server : StreamServer
        Started.
    patience_seconds : float
        How long a group of clients waits for all of its streams once it has one.
    """

    settings: StreamSettings
    server: StreamServer
    patience_seconds: float

    def transport(self, meter: ByteMeter, edge: str) -> StreamTransport:
        """Return an edge's transport, whose bytes are counted by `meter`."""
        return StreamTransport(
            self.server,
            payload=self.settings.payload,
            timeout_seconds=self.settings.timeout,
            patience_seconds=self.patience_seconds,
            on_bytes=partial(meter.on_bytes, edge),
            parts=self.settings.micro_batches,
        )

    def staying(self, grid: Grid) -> StayGrid:
        """Return what reaches the nodes of Flower's grid by streams that stay open; they end with its block."""
        return StayGrid(grid, self.server)

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


@contextmanager
def open_streams(
    settings: StreamSettings, patience_seconds: float, max_frame_bytes: int, max_streams: int, max_message_bytes: int
) -> Iterator[Streams]:
    """Accept streams while a run lasts.

    Parameters
    ----------
    settings : StreamSettings
        Section of the run config.
    patience_seconds : float
        How long a group of clients waits for all of its streams once it has one.
    max_frame_bytes : int
        The largest frame of a client, see `largest_frame_bytes`; 0 where no mini-batches travel in streams.
    max_streams : int
        Clients that may have a stream at the same time.
    max_message_bytes : int
        The largest message of nodes that stay; 0 where none does.

    Raises
    ------
    UserError
        If certificate or key can't be used, or the port is taken.
    """
    address = checked_address(settings)
    key, certificate = given_certificate(settings) if settings.certificate else self_signed(address, CERTIFICATE_DAYS)
    try:
        server = StreamServer(
            key,
            certificate,
            address=address,
            listen_on=listen_on(address),
            port=settings.port,
            max_frame_bytes=max_frame_bytes,
            max_streams=max_streams,
            max_message_bytes=max_message_bytes,
        )
    except RuntimeError:
        raise bad_value("stream.port", settings.port, f"a free port of {listen_on(address)}, or 0") from None
    with server:
        yield Streams(settings, server, patience_seconds)


def stream_form(payload: str, model: nn.Module) -> Format:
    """Return how activations of a model travel; UserError if a model of its data type can't be streamed."""
    dtype = next(model.parameters()).dtype
    try:
        return Format(payload, dtype)
    except ValueError:
        allowed = f"'messages' for a model of {dtype}; those of float32 and float64 can be streamed"
        raise bad_value("split.transport", "stream", allowed) from None


def largest_frame_bytes(
    model: nn.Sequential,
    example: Any,
    cuts: Iterable[Cut | int],
    payload: str,
    batch_size: int,
    labels_per_sample: int = 1,
) -> int:
    """Return the bytes of the largest frame that a client with one of these cuts may send.

    Raises
    ------
    UserError
        As `stream_form`.
    """
    forms, written = forms_at_cuts(model, example), stream_form(payload, model)
    crossed = [forms[place] for cut in cuts for place in Cut.of(model, cut).places(model)]
    numbers = [labels_per_sample + form.crossing.has_lengths for form in crossed]
    sizes = (written.frame_bytes(batch_size, form.shape, n) for form, n in zip(crossed, numbers, strict=True))
    return min(max(sizes), MOST_FRAME_BYTES)


def largest_message_bytes(model: nn.Module) -> int:
    """Return the bytes of the largest message to and from a client that stays and has the whole model.

    A message holds few models: weights, and perhaps corrections beside them. Of a model whose layers make their weights
    when they first compute, nobody knows yet how large they are.

    Parameters
    ----------
    model : nn.Module
        The run's.
    """
    if lacks_weights(model):
        return MOST_FRAME_BYTES
    model_bytes = sum(values.nbytes for values in model.state_dict().values())
    return min(MODELS_IN_A_MESSAGE * model_bytes + BESIDE_MODELS_BYTES, MOST_FRAME_BYTES)


def checked_address(settings: StreamSettings) -> str:
    """Return ``stream.address``; UserError if it is neither an IP address nor a host's name."""
    address = settings.address
    try:
        return str(ip_address(address))
    except ValueError:
        if HOST_NAME.fullmatch(address):
            return address
    allowed = "the name or IP address of this host as clients know it, without a port"
    raise bad_value("stream.address", address, allowed)


def check_found(address: str) -> None:
    """Raise UserError unless this host finds an address, where its clients are in the same process."""
    try:
        socket.getaddrinfo(address, None)
    except OSError as error:
        allowed = f"one that this host finds, as its clients do ({error.strerror})"
        raise bad_value("stream.address", address, allowed) from None


def listen_on(address: str) -> str:
    """Return the network interface to listen on: this host's own where clients are on it too, else all."""
    try:
        own = ip_address(address).is_loopback
    except ValueError:
        own = address == "localhost"
    if own:
        return f"[{address}]" if ":" in address else address
    return "[::]" if socket.has_dualstack_ipv6() else "0.0.0.0"


def given_certificate(settings: StreamSettings) -> tuple[bytes, bytes]:
    """Return the key and the certificate that the config names, as PEM; UserError if they are not a pair."""
    key, certificate = (
        _read("stream.key", settings.key),
        _read("stream.certificate", settings.certificate),
    )
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        own = parsed.public_key()
    except ValueError:
        raise bad_value("stream.certificate", settings.certificate, "a PEM file with a certificate") from None
    if not is_valid_for(parsed, settings.address):
        allowed = f"a certificate that is valid today, for stream.address = {settings.address!r}"
        raise bad_value("stream.certificate", settings.certificate, allowed)
    try:
        given = serialization.load_pem_private_key(key, password=None).public_key()
    except (ValueError, TypeError):
        raise bad_value("stream.key", settings.key, "a PEM file with a private key that has no password") from None
    if given != own:
        raise bad_value("stream.key", settings.key, f"the private key of {settings.certificate}")
    return key, certificate


def _read(key: str, value: str) -> bytes:
    try:
        return Path(value).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"{key} = {value!r}: can't be read ({error.strerror})") from None
