"""The ServerApp: a strategy of one's own at every edge, Flower's FedAvg over the edges."""

import time

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from strategies import Hierarchical, ask_profiles, group_by_edge

from .strategy import ClippedFedAvg
from .task import new_model

app = ServerApp()
WAIT_SECONDS = 20


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, then print the accuracy on the nodes' test images."""
    config = context.run_config
    wait_for_nodes(grid, config["num-nodes"])
    strategy = Hierarchical(
        cloud=FedAvg(),
        make_edge=lambda name, size: ClippedFedAvg(config["max-norm"], min_available_nodes=size),
        topology=group_by_edge(ask_profiles(grid), config["num-edges"]),
        edge_rounds=config["edge-rounds"],
        seed=config["seed"],
    )
    arrays, rounds = ArrayRecord(new_model(config["seed"]).state_dict()), config["num-rounds"]
    result = strategy.start(grid, initial_arrays=arrays, num_rounds=rounds)
    accuracy = result.evaluate_metrics_clientapp[rounds]["accuracy"]
    print(f"accuracy after {rounds} rounds: {accuracy:.4f}", flush=True)


def wait_for_nodes(grid: Grid, num_nodes: int) -> None:
    """Wait until all nodes are there: when a simulation starts, the Grid can still be empty."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (connected := len(list(grid.get_node_ids()))) < num_nodes:
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"{connected} of {num_nodes} SuperNodes are connected; in a simulation, type: flwr run . --stream "
                f'--federation-config "num-supernodes={num_nodes} client-resources-num-cpus=1"'
            )
        time.sleep(0.5)
