"""The transports that ``split.transport`` and ``deploy.transport`` name."""

from collections.abc import Callable
from dataclasses import dataclass

from espalier.app.settings.sections import StreamSettings


@dataclass(frozen=True)
class TransportKind:
    """How what belongs together travels: mini-batches of a round, or messages of a run.

    Parameters
    ----------
    opens_streams : bool
        Clients open a stream for it.
    payload : Callable[[StreamSettings], str]
        What activations and cut gradients are written as.
    """

    opens_streams: bool
    payload: Callable[[StreamSettings], str]


TRANSPORTS = {
    "messages": TransportKind(opens_streams=False, payload=lambda stream: "float32"),
    "stream": TransportKind(opens_streams=True, payload=lambda stream: stream.payload),
}
