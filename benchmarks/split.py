"""What cutting a model costs over training it whole, and what the message pattern gives in Flower's simulation.

``python -m benchmarks.split`` trains in turns with the in-process engine and with a bare PyTorch loop that makes the
same forward and backward passes on the unsplit model: the model of ``make demo`` as there (`small-cnn` on the digits, 8
clients on 2 edges, mini-batches of 16, 4 in an edge round, SFL-V1 at the edges), then `cnn` on 32x32 colour images,
SFL-V1 with 5 clients x 50 mini-batches of 32; each without a message per mini-batch, and with. For each it prints the
process's CPU seconds per round of both (medians after a warm-up), their ratio, and the largest difference between the
weights they end with. Pixels are random; one thread; no evaluation.

Then the last clients make 10 steps each over Flower's simulation runtime (Ray, two workers): with one message per step,
which carries the cut gradient there and the next activations back, and with two, where another message goes to the
client and back before each. It prints the steps per second of all clients together.
"""

import logging
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from benchmarks.hierarchical import measure, random_pixels
from espalier.app.client import app as client_app
from espalier.app.config.parse import parse_config
from espalier.app.config.run_config import RunConfig
from espalier.app.ground.logs import quiet_flower
from espalier.app.wiring.one_server import assemble, checked_task
from espalier.clients.messages.profile import QUERY_PROFILE
from espalier.clients.messages.split_names import SPLIT_BEGIN
from espalier.strategies import EdgeRounds, Update
from espalier.strategies.exchange import Exchanges
from espalier.strategies.views import MemberGrid

IN_PROCESS = {"learning-rate": 0.01, "report.evaluate-every": 0, "engine": "in-process"}
DEMO = {
    "algorithm": "hsfl",
    "alpha": 0.1,
    "batches-per-epoch": 4,
    "batch-size": 16,
    "global-rounds": 32,
    **IN_PROCESS,
}
STEPS = 10
WORKERS = 2


class TwoMessages:
    """An edge that sends a message more before every message of a split step.

    Parameters
    ----------
    edge : EdgeRounds
        The edge.
    """

    def __init__(self, edge: EdgeRounds) -> None:
        self.edge = edge

    def __getattr__(self, name: str) -> Any:
        return getattr(self.edge, name)

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: MemberGrid
    ) -> Exchanges[Update]:
        """Run the edge's round with twice the exchanges."""
        conversation = self.edge.train_round(server_round, arrays, config, grid)
        messages = next(conversation)
        while True:
            if messages and messages[0].metadata.message_type != SPLIT_BEGIN:
                yield [Message(RecordDict(), m.metadata.dst_node_id, QUERY_PROFILE) for m in messages]
            replies = yield messages
            try:
                messages = conversation.send(replies)
            except StopIteration as stop:
                return stop.value


def simulated_steps_per_second(config: RunConfig, wrap: Callable[[EdgeRounds], EdgeRounds]) -> float:
    """Return the steps per second of all clients over Flower's simulation, of the second of two rounds."""
    seconds: list[float] = []
    server_app, simulated_clients = ServerApp(), ClientApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        task, model = checked_task(config)
        strategy = assemble(config, grid, task, model).hierarchical
        strategy.edges = {name: wrap(edge) for name, edge in strategy.edges.items()}
        for outcome in strategy.rounds(grid, ArrayRecord(model.state_dict()), 2):
            seconds.extend(edge.seconds for edge in outcome.edges.values())

    values = config.as_dict()

    def with_config(message: Message, context: Context) -> Message:
        return client_app(message, replace(context, run_config=values))

    for register in (simulated_clients.train, simulated_clients.query, simulated_clients.evaluate):
        for action in ("default", "split_begin", "split_step", "split_end", "labels", "profile"):
            register(action)(with_config)
    resources = {"num_cpus": WORKERS, "logging_level": "error", "log_to_driver": False}
    backend_config = {"client_resources": {"num_cpus": 1}, "init_args": resources}
    run_simulation(server_app, simulated_clients, config.federation.num_clients, backend_config=backend_config)
    return config.federation.num_clients * STEPS / seconds[-1]


def settings_of_cnn(data_dir: str | Path, folder: str) -> dict[str, Any]:
    """Return the settings of the larger model, for the data in `data_dir`, with a cache in `folder`."""
    return {
        "algorithm": "sfl-v1",
        "dataset": "image-folder",
        "data-dir": str(Path(data_dir).absolute()),
        "data.cache-dir": f"{folder}/cache",
        "partition": "iid",
        "num-clients": 5,
        "global-rounds": 9,
        "local-epochs": 1,
        "batches-per-epoch": 50,
        **IN_PROCESS,
    }


def main() -> None:
    """Measure and print."""
    quiet_flower()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")  # Ray announces coming changes
    with tempfile.TemporaryDirectory() as folder:
        data_dir = sys.argv[1] if len(sys.argv) > 1 else random_pixels(Path(folder))
        values = settings_of_cnn(data_dir, folder)
        for model, settings in (("small-cnn, as in the demo", DEMO), ("cnn", values)):
            for execution in ("fused", "messages"):
                print(f"{model}, split.execution={execution}")
                measure(parse_config(settings | {"split.execution": execution}))
        few_steps = parse_config(values | {"batches-per-epoch": STEPS, "engine": "flower"})
        one = simulated_steps_per_second(few_steps, lambda edge: edge)
        two = simulated_steps_per_second(few_steps, TwoMessages)
    print(f"Flower's simulation, one message per step   {one:6.1f} steps/s")
    print(f"Flower's simulation, two messages per step  {two:6.1f} steps/s")


if __name__ == "__main__":
    main()
