"""Answers to the messages of split training."""

from functools import partial

from flwr.app import Context, Message

from ..half import Handler
from ..memory import kept
from ..messages.split import FeatureGradient, SplitBegin, SplitStep, SplitTail
from ..messages.split_names import QUERY_LABELS, SPLIT_BEGIN, SPLIT_END, SPLIT_STEP, SPLIT_TAIL
from ..task import ClientTask
from .registered_labels import check_registered, register_labels
from .session import Session, result_reply
from .sessions import Sessions


def split_begin(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Message:
    """Answer ``train.split_begin``: take the client block and send the first mini-batch's activations."""
    instruction = SplitBegin.from_content(message.content)
    sessions.drop(context)
    check_registered(context, task, instruction.labels)
    session = Session.begin(task, instruction, kept(context))
    sessions.note(context, instruction, task)
    return Message(sessions.put(context, session).to_content(), reply_to=message)


def split_tail(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Message:
    """Answer ``train.split_tail``: compute the loss of the edge's features, and send its gradient."""
    instruction = SplitTail.from_content(message.content)
    session = sessions.pop(context, task, instruction)
    gradient = FeatureGradient(session.at_tail(instruction.features), instruction.step)
    sessions.keep(context, session)
    return Message(gradient.to_content(), reply_to=message)


def split_step(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Message:
    """Answer ``train.split_step``: apply the cut gradient and send the next mini-batch's activations."""
    session = _apply_gradient(message, context, task, sessions)
    return Message(sessions.put(context, session).to_content(), reply_to=message)


def split_end(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Message:
    """Answer ``train.split_end``: apply the last cut gradient and send the client block back."""
    session = _apply_gradient(message, context, task, sessions)
    sessions.drop(context)
    return result_reply(message, context, session)


def split_handlers(sessions: Sessions) -> dict[str, Handler]:
    """Return the handlers of split training by messages, by message type; `sessions` keeps sessions between them."""
    return {
        SPLIT_BEGIN: partial(split_begin, sessions=sessions),
        SPLIT_TAIL: partial(split_tail, sessions=sessions),
        SPLIT_STEP: partial(split_step, sessions=sessions),
        SPLIT_END: partial(split_end, sessions=sessions),
        QUERY_LABELS: register_labels,
    }


def _apply_gradient(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Session:
    instruction = SplitStep.from_content(message.content)
    session = sessions.pop(context, task, instruction)
    session.backward(instruction.gradient)
    return session
