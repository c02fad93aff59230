"""Small readers of replies."""

import math
import re
from typing import Any

from flwr.app import ArrayRecord, Error, Message, MessageType, MetricRecord

from espalier.clients.shared import text
from espalier.clients.shared.records import records_in

# What Flower makes of an exception of a ClientApp: <class 'builtins.ValueError'>:<'no such column'>; it may be cut off.
RAISED = re.compile(r"<class '(?:[^']*\.)?(?P<kind>\w+)'>:<'(?P<text>.*?)(?:'>)?$")
# In Flower's simulation it is the traceback of a Ray worker, which ends with the exception's text.
SIMULATED = "<class 'ray.exceptions.RayTaskError(ClientAppException)'>"
LINK_OF_SIMULATED = "The above exception was the direct cause"
TEXT_OF_SIMULATED = "Exception ClientAppException occurred. Message:"


def one_line(error: Exception) -> str:
    """Return an error's text in one line."""
    return text.one_line(str(error.args[0] if isinstance(error, KeyError) and error.args else error))


def reason_of(error: Error) -> str:
    """Return why a reply is an error, in one line that is never empty."""
    raw = error.reason or ""
    reason = text.one_line(_of_simulation(raw) if raw.startswith(SIMULATED) else raw)
    if raised := RAISED.match(reason):
        return f"{raised['kind']}: {raised['text']}"
    return reason or f"error {error.code}"


def _of_simulation(traceback: str) -> str:
    """Return an exception's kind and text, or its text alone where the traceback of a worker has no such kind."""
    said = traceback.rpartition(TEXT_OF_SIMULATED)[2].strip().removesuffix("'>")
    raised = traceback.rpartition(LINK_OF_SIMULATED)[0].rstrip()
    kind = raised.removesuffix(f": {said}").rpartition("\n")[2].rpartition(".")[2]
    return ": ".join(filter(None, (kind if kind.isidentifier() else "", said)))


def number_of(value: Any) -> float | None:
    """Return what came as one number, if it is one and finite."""
    try:
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
    except OverflowError:  # an integer that no float can hold
        return None


def weight_of(reply: Message, weight_key: str) -> float:
    """Return the weight of a screened reply, 0 for an error reply."""
    if reply.has_error():
        return 0.0
    return float(record_of_metrics(reply)[weight_key])  # type: ignore[arg-type]


def is_training(instruction: Message) -> bool:
    """Return whether an instruction asks to train, not to evaluate."""
    return instruction.metadata.message_type.split(".")[0] == MessageType.TRAIN


def model_sent(instruction: Message) -> ArrayRecord | None:
    """Return the one model of an instruction to train, like which a reply has to hold one; None if there is none."""
    sent = records_in(instruction.content, ArrayRecord) if is_training(instruction) else {}
    return next(iter(sent.values())) if len(sent) == 1 else None


def record_of_metrics(reply: Message) -> MetricRecord:
    """Return the one record of metrics of a screened reply."""
    (metrics,) = records_in(reply.content, MetricRecord).values()
    return metrics
