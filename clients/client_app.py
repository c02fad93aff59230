"""The ClientApp: one handler per message type."""

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from .device.gateway import register_gateway_handlers
from .device.measuring import measured_profile
from .device.profile import profile_reply
from .messages.profile import ProfileQuery
from .shared.lanes import Lanes
from .split.answers import register_split_handlers
from .split.evaluation import register_split_evaluation_handlers
from .split.fused import split_fused
from .split.sessions import Sessions
from .split.stream import split_stream
from .task import ClientTask
from .whole.evaluation import evaluate
from .whole.training import train, train_accumulated


def make_client_app(
    load_task: Callable[[Context], ClientTask], *, durable: bool = True, lanes: Lanes | None = None
) -> ClientApp:
    """Return a ClientApp that trains, whole or split, and evaluates the tasks that `load_task` gives.

    On a node whose config has an ``edge-folder`` it is the gateway of an edge, see `espalier.clients.device.gateway`.

    Parameters
    ----------
    load_task : Callable[[Context], ClientTask]
        Called for every message; what is costly in it should be cached.
    durable : bool (default: True)
        Messages of one node may reach different processes, see `Sessions`.
    lanes : Lanes, optional (default: None)
        Where clients find the edges that are in this process, see `espalier.clients.split.fused`.
    """
    app = ClientApp()
    sessions = Sessions(durable)
    register_split_handlers(app, load_task, sessions)
    register_split_evaluation_handlers(app, load_task)

    @app.train("split_stream")
    def handle_split_stream(message: Message, context: Context) -> Message:
        return split_stream(message, context, load_task(context), sessions)

    @app.train("split_fused")
    def handle_split_fused(message: Message, context: Context) -> Message:
        return split_fused(message, context, load_task(context), lanes or Lanes())

    register_gateway_handlers(app)

    @app.train()
    def handle_train(message: Message, context: Context) -> Message:
        return train(message, load_task(context))

    @app.train("accumulated")
    def handle_train_accumulated(message: Message, context: Context) -> Message:
        return train_accumulated(message, load_task(context))

    @app.evaluate()
    def handle_evaluate(message: Message, context: Context) -> Message:
        return evaluate(message, load_task(context))

    @app.query("profile")
    def handle_profile(message: Message, context: Context) -> Message:
        task, query = load_task(context), ProfileQuery.from_content(message.content)
        return profile_reply(
            message,
            partition_id=task.partition_id,
            num_train_examples=len(task.train),
            num_test_examples=len(task.test),
            class_counts=task.class_counts,
            edge_name=task.edge_name,
            device=measured_profile(query, context, task) if query.measure else None,
        )

    return app
