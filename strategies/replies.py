"""Small readers of replies."""

import math
import re
from typing import Any

from flwr.app import Error, Message, MessageType, MetricRecord

from espalier.clients.shared import text

# What Flower makes of an exception of a ClientApp: <class 'builtins.ValueError'>:<'no such column'>; it may be cut off.
RAISED = re.compile(r"<class '(?:[^']*\.)?(?P<kind>\w+)'>:<'(?P<text>.*?)(?:'>)?$")


def one_line(error: Exception) -> str:
    """Return an error's text in one line."""
    return text.one_line(str(error.args[0] if isinstance(error, KeyError) and error.args else error))


def reason_of(error: Error) -> str:
    """Return why a reply is an error, in one line that is never empty."""
    reason = text.one_line(error.reason or "")
    if raised := RAISED.match(reason):
        return f"{raised['kind']}: {raised['text']}"
    return reason or f"error {error.code}"


def number_of(value: Any) -> float | None:
    """Return what came as one number, if it is one and finite."""
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:  # an integer that no float can hold
        return None


def weight_of(reply: Message, weight_key: str) -> float:
    """Return the weight of a screened reply, 0 for an error reply."""
    if reply.has_error():
        return 0.0
    return float(next(iter(reply.content.metric_records.values()))[weight_key])  # type: ignore[arg-type]


def is_training(instruction: Message) -> bool:
    """Return whether an instruction asks to train, not to evaluate."""
    return instruction.metadata.message_type.split(".")[0] == MessageType.TRAIN


def answers_in_kind(instruction: Message, reply: Message) -> bool:
    """Return whether a reply has to hold arrays like those sent."""
    return is_training(instruction) and len(instruction.content.array_records) == 1 and not reply.has_error()


def record_of_metrics(reply: Message) -> MetricRecord:
    """Return the one record of metrics of a screened reply."""
    (metrics,) = reply.content.metric_records.values()
    return metrics
