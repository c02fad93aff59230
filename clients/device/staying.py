"""What a device does while it stays: it answers what comes through its stream, in the process that it has."""

from collections.abc import Callable
from typing import Final, NoReturn

from flwr.app import Context, Error, Message, RecordDict

from ..messages.stay import HELLO, RAISED, STAY_LOST, Stay, pack_reply, unpack_message
from ..streams import OpenStream, StreamOver, Withdrawn, open_stream
from .edge_socket import NoEdgeError

Answer = Callable[[Message, Context], Message]

MOST_WORDS: Final = 10_000  # characters of an error; a log shows fewer


def stay(message: Message, context: Context, answer: Answer) -> Message:
    """Answer ``query.stay``: open a stream and answer what comes through it, until it is over.

    The node's state lives in this process meanwhile; whoever runs it keeps the state of the reply.

    Parameters
    ----------
    message : Message
        The message.
    context : Context
        Of the node, for all messages.
    answer : Callable[[Message, Context], Message]
        The ClientApp.

    Returns
    -------
    Message
        Nothing, or an error where the stream broke, or could not be opened.
    """
    try:
        ticket = Stay.from_content(message.content).ticket
        with open_stream(ticket, None) as stream:
            _answer_all(stream, message, context, answer, ticket.max_bytes)
    except (StreamOver, Withdrawn):
        return Message(RecordDict(), reply_to=message)
    except ConnectionError as error:
        return Message(Error(STAY_LOST, str(error)), reply_to=message)


def _answer_all(stream: OpenStream, message: Message, context: Context, answer: Answer, max_bytes: int) -> NoReturn:
    """Answer one message after the other; what ends the stream is raised."""
    stream.send(HELLO)
    while True:
        # Nothing of them is kept while the next message is waited for, perhaps for hours.
        stream.send(_answered(unpack_message(stream.receive(), message), context, answer, max_bytes))


def _answered(asked: Message, context: Context, answer: Answer, max_bytes: int) -> bytes:
    """Return the reply to a message as a frame.

    Where the ClientApp raises, or its reply is too large, the reply says so in Flower's words, and is the last. The
    next message finds a new process, which nothing of that can harm, and the node's state of before, as by messages. A
    gateway whose edge is not there has nothing to harm, and stays.
    """
    before = _copied(context.state)
    try:
        return pack_reply(answer(asked, context), max_bytes, is_last=False)
    except Exception as error:
        context.state = before
        reply = Message(Error(RAISED, _words_of(error)), reply_to=asked)
        return pack_reply(reply, max_bytes, is_last=not isinstance(error, NoEdgeError))


def _words_of(error: Exception) -> str:
    """Return what Flower's messages say of an error, of which a frame has room for a part where it is long."""
    try:
        return f"{type(error)}:<'{error}'>"[:MOST_WORDS]
    except Exception:  # of a class that fails to say
        return f"{type(error)}"


def _copied(state: RecordDict) -> RecordDict:
    """Return a node's state, whose records and lists can be changed without changing it."""
    copied = RecordDict({name: record.copy() for name, record in state.items()})
    for record in copied.values():
        for key, value in record.items():
            if isinstance(value, list):
                record[key] = list(value)  # type: ignore[assignment]
    return copied
