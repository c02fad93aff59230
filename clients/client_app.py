"""The ClientApp: one table, message type -> handler, is the client's whole vocabulary."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from .corners import answered_in_corners
from .device.gateway import GATEWAY, forward
from .device.measuring import tell_profile
from .device.staying import stay
from .half import Handler, Mod
from .memory import forget_other_run
from .messages.profile import QUERY_PROFILE
from .messages.split_names import SPLIT_FUSED, SPLIT_STREAM
from .messages.stay import QUERY_STAY
from .messages.train import EVALUATE, TRAIN, TRAIN_ACCUMULATED
from .shared.lanes import Lanes
from .split.answers import split_handlers
from .split.evaluation import EVALUATION
from .split.fused import split_fused
from .split.sessions import Sessions
from .split.stream import split_stream
from .task import ClientTask
from .whole.clipping import clip_as_told
from .whole.evaluation import evaluate
from .whole.training import train, train_accumulated


def train_as_told(message: Message, context: Context, task: ClientTask) -> Message:
    """Answer an instruction to train, see `train`; the update is clipped where a strategy says so."""
    return clip_as_told(message, context, partial(answered_in_corners, train, task))


WHOLE: Mapping[str, Handler] = {TRAIN: train_as_told, TRAIN_ACCUMULATED: train_accumulated, EVALUATE: evaluate}


def make_client_app(
    load_task: Callable[[Context], ClientTask],
    *,
    durable: bool = True,
    lanes: Lanes | None = None,
    handlers: Mapping[str, Handler] | None = None,
    mods: Sequence[Mod] = (),
) -> ClientApp:
    """Return a ClientApp that trains, whole or split, and evaluates the tasks that `load_task` gives.

    What a task's `ClientHalf` has for a message type comes before the handlers here. On a node whose config has an
    ``edge-folder`` it is the gateway of an edge, see `espalier.clients.device.gateway`.

    Parameters
    ----------
    load_task : Callable[[Context], ClientTask]
        Called for every message; what is costly in it should be cached.
    durable : bool (default: True)
        Messages of one node may reach different processes, see `Sessions`.
    lanes : Lanes, optional (default: None)
        Where clients find the edges that are in this process, see `espalier.clients.split.fused`.
    handlers : Mapping[str, Handler], optional (default: None)
        By message type ("train", "train.mine"), what answers instead of the client's own handlers, or beside them:
        called with message, context and task, it returns the reply.
    mods : Sequence[Mod] (default: none)
        Flower's mods, around all handlers; the first is the outermost.
    """
    sessions = Sessions(durable)
    table: dict[str, Handler] = {
        **WHOLE,
        **split_handlers(sessions),
        **EVALUATION,
        SPLIT_STREAM: partial(split_stream, sessions=sessions),
        SPLIT_FUSED: partial(split_fused, lanes=lanes or Lanes()),
        QUERY_PROFILE: tell_profile,
        **(handlers or {}),
    }
    return _TableApp(load_task, table, mods)


class _TableApp(ClientApp):
    """A ClientApp that answers by a table; functions that are registered with it answer other message types."""

    def __init__(
        self, load_task: Callable[[Context], ClientTask], table: Mapping[str, Handler], mods: Sequence[Mod]
    ) -> None:
        super().__init__()
        self._load_task, self._table = load_task, table
        self._answer_through_mods = through(mods, self._answer)

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message, or all that come through the stream that it opens."""
        if message.metadata.message_type == QUERY_STAY:
            return stay(message, context, self._answer_through_mods)
        return self._answer_through_mods(message, context)

    def _answer(self, message: Message, context: Context) -> Message:
        kind = message.metadata.message_type
        if kind in GATEWAY:
            return forward(message, context)
        forget_other_run(message, context)
        task = self._load_task(context)
        handler = task.half.handlers.get(kind) or self._table.get(kind)
        if handler is None:
            return super().__call__(message, context)
        answer = through(task.half.mods.get(kind, ()), partial(answered_in_corners, handler, task))
        return task.as_travels(answer(message, context), message, context)


def through(mods: Sequence[Mod], call: Callable[[Message, Context], Message]) -> Callable[[Message, Context], Message]:
    """Return what answers as `call`, with Flower's mods around it; the first is the outermost."""
    for mod in reversed(mods):
        call = partial(_through_one, mod, call)
    return call


def _through_one(mod: Mod, call: Callable[[Message, Context], Message], message: Message, context: Context) -> Message:
    return mod(message, context, call)
