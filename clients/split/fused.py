"""A whole split round inside of one message, where the edge is in the same process."""

import time

from flwr.app import Context, Message
from torch import Tensor

from ..memory import kept
from ..messages.seconds import tell_waiting
from ..messages.split import FeatureGradient, SplitFused
from ..shared.lanes import Lanes, Sent
from ..task import ClientTask
from .registered_labels import check_registered
from .session import Session, result_reply


def split_fused(message: Message, context: Context, task: ClientTask, lanes: Lanes) -> Message:
    """Answer ``train.split_fused``: train the client block against the edge's, and send it back.

    What is computed is what messages would have computed, in the same order.

    Raises
    ------
    ValueError
        If there is no such edge in this process, or it goes on without the client.
    """
    instruction = SplitFused.from_content(message.content)
    check_registered(context, task, instruction.labels)
    session, node_id = Session.begin(task, instruction, kept(context)), context.node_id
    ((_, lane),) = lanes.enter([node_id])
    seconds_at_edge = 0.0

    def answer_to(sent: Sent) -> Tensor:
        nonlocal seconds_at_edge
        started = time.perf_counter()
        answers = lane.exchange({node_id: sent})
        seconds_at_edge += time.perf_counter() - started
        if node_id not in answers:
            raise ValueError("the edge goes on without it")
        return answers[node_id]

    while not session.is_over:
        answer = answer_to(session.forward())
        if session.awaits_features:
            answer = answer_to(FeatureGradient(session.at_tail(answer), session.step))
        session.backward(answer)
    reply = result_reply(message, context, session)
    tell_waiting(reply, seconds_at_edge)
    return reply
