"""The ServerApp: a strategy of one's own at every edge, Flower's FedAvg over the edges."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from espalier.strategies import Hierarchical, ask_profiles, group_by_edge, wait_for_nodes

from .strategy import ClippedFedAvg
from .task import new_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, then print the accuracy on the nodes' test images."""
    config = context.run_config
    wait_for_nodes(grid, config["num-nodes"], timeout_seconds=20)
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
