"""The ServerApp: SFL-V1 at every edge, Flower's FedAvg over the edges."""

from functools import partial

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from espalier.strategies import Hierarchical, StrategyEdge, ask_profiles, group_by_edge, wait_for_nodes
from espalier.strategies.split import SplitFedV1

from .task import INPUT_SHAPE, new_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, then print the accuracy on the nodes' test images."""
    torch.set_num_threads(1)
    config = context.run_config
    wait_for_nodes(grid, config["num-nodes"], timeout_seconds=20)

    def make_edge(name: str, size: int) -> SplitFedV1:
        return SplitFedV1(
            new_model(config["seed"]),
            cut_of=lambda node_id: config["cut"],
            make_optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
            input_shape=INPUT_SHAPE,
            evaluation=StrategyEdge(FedAvg(min_evaluate_nodes=size, min_available_nodes=size)),
            seed=config["seed"],
        )

    strategy = Hierarchical(
        cloud=FedAvg(),
        make_edge=make_edge,
        topology=group_by_edge(ask_profiles(grid), config["num-edges"]),
        edge_rounds=config["edge-rounds"],
        seed=config["seed"],
    )
    arrays, rounds = ArrayRecord(new_model(config["seed"]).state_dict()), config["num-rounds"]
    result = strategy.start(grid, initial_arrays=arrays, num_rounds=rounds)
    accuracy = result.evaluate_metrics_clientapp[rounds]["accuracy"]
    print(f"accuracy after {rounds} rounds: {accuracy:.4f}", flush=True)
