"""A client that has corners of some weights: its model is whole, the rest is 0, and corners alone travel."""

from flwr.app import Context, Message

from .half import Handler
from .shared.corners import with_corners, with_whole
from .task import ClientTask


def answered_in_corners(handler: Handler, task: ClientTask, message: Message, context: Context) -> Message:
    """Return a handler's reply to a message that holds corners, and so does the reply."""
    if not task.corners:
        return handler(message, context, task)
    whole = {name: tuple(weight.shape) for name, weight in task.model.state_dict().items()}
    sent = message.content
    message.content = with_whole(sent, task.corners, whole)
    try:
        reply = handler(message, context, task)
    finally:
        message.content = sent
    if reply.has_content():
        reply.content = with_corners(reply.content, task.corners, whole)
    return reply
