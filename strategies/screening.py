"""Replies are checked before they are averaged: one bad client must not spoil, or stop, a round."""

from collections import Counter
from collections.abc import Mapping, Sequence

from flwr.app import Error, Message

from .exchange import REJECTED
from .outcomes import Failure
from .replies import is_training, model_sent, record_of_metrics
from .reply_faults import loss_faults, reply_fault
from .reply_forms import bring_into_form, form_of, rare_figures, usual_names
from .screened_content import mark_screened


def screen(
    instructions: Sequence[Message],
    replies: Sequence[Message],
    weight_key: str,
    least: Mapping[str, float] | None = None,
) -> tuple[list[Message], list[Failure]]:
    """Turn every reply that can't be averaged into an error reply.

    Parameters
    ----------
    instructions, replies : Sequence[Message]
        What was sent, and one reply to each, in the same order.
    weight_key : str
        The metric by which replies are weighted, e.g. ``"num-examples"``.
    least : Mapping[str, float], optional (default: None)
        Other metrics that every reply must have, as one number each, and the least that it may be.

    Returns
    -------
    tuple[list[Message], list[Failure]]
        The replies in their order, bad ones replaced by error replies, and a failure for each of these.

    Notes
    -----
    A reply is left out when it is an error; when its arrays have other names, shapes or kinds of numbers than the
    ones sent, or hold NaN or Inf; when its weight is missing, negative or not finite, or another metric is not finite,
    or, in an evaluation, is an accuracy and not from 0 to 1, or a number of examples below 0; when its loss is absurd
    beside the others'; when it holds more records or metrics, or longer names,
    than there is use for; when it is a reply to train and lacks a metric that more than half of the others have, or a
    record of configs.

    A metric that half or less of the replies to train have is dropped, so that nobody who adds one decides who fits;
    evaluations keep some, if they are numbers, see `complete`. What is left has the same form, as Flower's averages
    need it: records have the same names, and the arrays of a reply to train the order and the data types of the ones
    sent, for strategies take arrays by their place and sums in the type of the first.
    """
    reasons = [reply_fault(*pair, weight_key, least or {}) for pair in zip(instructions, replies, strict=True)]
    fit = [i for i, reason in enumerate(reasons) if not reason]
    for i, fault in zip(fit, loss_faults([record_of_metrics(replies[i]) for i in fit]), strict=True):
        reasons[i] = fault
    models = [model_sent(instruction) for instruction in instructions]
    judged = zip(models, replies, reasons, strict=True)
    forms = [None if reason else form_of(model, reply) for model, reply, reason in judged]
    good = [form for form in forms if form is not None]
    counts = Counter(part for form in good for part in form)
    trains = any(map(is_training, instructions))
    usual = {part for part, count in counts.items() if 2 * count > len(good)}
    usual |= set() if trains else rare_figures(counts, usual)
    for i, form in enumerate(forms):
        if form is None or not (missing := usual - form):
            continue
        if trains or any(part.kind != "metric" for part in missing):
            reasons[i] = f"its reply has no {' and no '.join(map(str, sorted(missing)[:3]))}, which others have"

    names = usual_names([reply for reply, reason in zip(replies, reasons, strict=True) if not reason])
    screened, failures = [], []
    for instruction, model, reply, reason in zip(instructions, models, replies, reasons, strict=True):
        if reason:
            failures.append(Failure(instruction.metadata.dst_node_id, reason))
            code, words = (reply.error.code, reply.error.reason) if reply.has_error() else (REJECTED, None)
            if words != reason:  # strategies write them into the log
                reply = Message(Error(code, reason), reply_to=instruction)
        else:
            bring_into_form(model, reply, usual, names)
            mark_screened(reply.content)
        screened.append(reply)
    return screened, failures
