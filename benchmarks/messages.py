"""Measure round trips of messages: InProcessGrid beside Flower's own simulation runtime (Ray).

::

    python benchmarks/messages.py

prints a table with round trips per second of a small and of a 1.6 MB message on both, and how many times faster
InProcessGrid is. A round trip is one message to a node and its reply; the ClientApp returns the content it got. There
are 200 nodes, and the same code sends one message each to two, or to all of them, at a time and waits for the replies.
The simulation has two Ray actors of one CPU each, and looks for messages every 0.1 s, which is what bounds it with few
in flight; InProcessGrid runs one message after the other in one thread. A figure is the median of five repetitions of
about a second, after a warm-up. It takes about a minute.
"""

import logging
import os
import statistics
import time
import warnings

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from espalier.sim.in_process_grid import InProcessGrid

NUM_WORKERS = 2
NUM_NODES = 200
IN_FLIGHT = (2, NUM_NODES)
REPETITIONS = 5
SECONDS = 1.0

CONTENTS = {
    "small message": RecordDict(
        {
            "config": ConfigRecord({"lr": 0.1, "server-round": 1}),
            "metrics": MetricRecord({"loss": 0.5, "num-examples": 600}),
        }
    ),
    "1.6 MB message": RecordDict(
        {"arrays": ArrayRecord([np.zeros(40_000, dtype=np.float32) for _ in range(10)])},
    ),
}


def echo(message: Message, context: Context) -> Message:
    """Return the content received."""
    return Message(message.content, reply_to=message)


def rate(grid: Grid, content: RecordDict, in_flight: int, seconds: float) -> float:
    """Return round trips per second, measured for `seconds` or one exchange, whichever is longer."""
    node_ids = list(grid.get_node_ids())[:in_flight]
    round_trips = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds or not round_trips:
        replies = list(grid.send_and_receive([Message(content, node_id, "query") for node_id in node_ids]))
        if len(replies) != in_flight or any(reply.has_error() for reply in replies):
            raise RuntimeError(f"a message failed: {replies}")
        round_trips += in_flight
    return round_trips / elapsed


def rates(grid: Grid) -> list[float]:
    """Return the median rate for each of `CONTENTS` and each of `IN_FLIGHT`."""
    while len(list(grid.get_node_ids())) < NUM_NODES:
        time.sleep(0.1)  # the simulation starts the ServerApp before its nodes
    medians = []
    for content in CONTENTS.values():
        for in_flight in IN_FLIGHT:
            rate(grid, content, in_flight, 0.0)  # the first exchange also starts the actors
            medians.append(statistics.median(rate(grid, content, in_flight, SECONDS) for _ in range(REPETITIONS)))
    return medians


def simulation_rates(client_app: ClientApp) -> list[float]:
    """Return what `rates` measures in Flower's simulation runtime."""
    medians: list[float] = []
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        medians.extend(rates(grid))

    resources = {"num_cpus": NUM_WORKERS, "logging_level": "error", "log_to_driver": False}
    backend_config = {"client_resources": {"num_cpus": 1}, "init_args": resources}
    run_simulation(server_app, client_app, NUM_NODES, backend_config=backend_config)
    return medians


def main() -> None:
    """Measure both and print the table."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")  # Ray announces coming changes
    client_app = ClientApp()
    client_app.query()(echo)
    in_process, simulation = rates(InProcessGrid(client_app, NUM_NODES)), simulation_rates(client_app)
    print(f"round trips/s, median of {REPETITIONS}")
    print(f"{'':<16}{'in flight':>10}{'InProcessGrid':>16}{'Flower (Ray)':>16}{'ratio':>8}")
    cases = [(name, in_flight) for name in CONTENTS for in_flight in IN_FLIGHT]
    for (name, in_flight), ours, flowers in zip(cases, in_process, simulation, strict=True):
        print(f"{name:<16}{in_flight:>10}{ours:>16,.0f}{flowers:>16,.1f}{ours / flowers:>8,.0f}")


if __name__ == "__main__":
    main()
