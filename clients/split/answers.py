"""Answers to the messages of split training."""

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ..messages.split import FeatureGradient, SplitBegin, SplitStep, SplitTail
from ..task import ClientTask
from .registered_labels import check_registered, register_labels
from .session import Session
from .sessions import Sessions

Handler = Callable[[Message, Context, ClientTask, Sessions], Message]


def split_begin(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Message:
    """Answer ``train.split_begin``: take the client block and send the first mini-batch's activations."""
    instruction = SplitBegin.from_content(message.content)
    sessions.drop(context)
    check_registered(context, task, instruction.labels)
    session = Session.begin(task, instruction)
    return Message(sessions.put(context, session).to_content(), reply_to=message)


def split_tail(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Message:
    """Answer ``train.split_tail``: compute the loss of the edge's features, and send its gradient."""
    instruction = SplitTail.from_content(message.content)
    session = sessions.take(context, task, instruction)
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
    return Message(session.result().to_content(), reply_to=message)


def register_split_handlers(app: ClientApp, load_task: Callable[[Context], ClientTask], sessions: Sessions) -> None:
    """Register the handlers of split training with a ClientApp.

    Parameters
    ----------
    app : ClientApp
        The app.
    load_task : Callable[[Context], ClientTask]
        Called for every message.
    sessions : Sessions
        Keeps sessions between messages.
    """
    handlers: dict[str, Handler] = {
        "split_begin": split_begin,
        "split_tail": split_tail,
        "split_step": split_step,
        "split_end": split_end,
    }
    for action, handler in handlers.items():

        @app.train(action)
        def handle(message: Message, context: Context, handler: Handler = handler) -> Message:
            return handler(message, context, load_task(context), sessions)

    @app.query("labels")
    def handle_labels(message: Message, context: Context) -> Message:
        return register_labels(message, context, load_task(context))


def _apply_gradient(message: Message, context: Context, task: ClientTask, sessions: Sessions) -> Session:
    instruction = SplitStep.from_content(message.content)
    session = sessions.take(context, task, instruction)
    session.backward(instruction.gradient)
    return session
