"""What the edges of all split algorithms have in common."""

from functools import partial
from typing import Any

from flwr.app import ArrayRecord
from torch import nn

from espalier.app.algorithms.algorithm import ONE_NODE, Site
from espalier.app.algorithms.strategies import fedavg_of_all
from espalier.app.errors import bad_value
from espalier.clients.nested import take
from espalier.clients.task import LocalTraining
from espalier.clients.training import make_optimizer
from espalier.strategies import StrategyEdge
from espalier.strategies.edges import check_minimum
from espalier.strategies.split import SplitFedV1
from espalier.strategies.split.server_block import legal_cuts


def split_options(site: Site) -> dict[str, Any]:
    """Return what every `espalier.strategies.split.SplitEdge` takes, from the sections of the run config."""
    split, train, own = site.split, site.train, site.task.training
    server = LocalTraining(
        optimizer=own.optimizer if callable(own.optimizer) else split.server_optimizer,
        learning_rate=split.server_learning_rate or train.learning_rate,
        momentum=split.server_momentum,
        weight_decay=split.server_weight_decay,
    )
    return {
        "make_optimizer": partial(make_optimizer, training=server),
        "input_shape": example_on(site),
        "evaluation": fedavg_of_all(),
        "label_policy": split.label_policy,
        "participation": site.federation.participation,
        "max_batch": train.batch_size,
        "max_steps": site.max_steps,
        "seed": site.seed,
        "transport": site.transport,
        "loss": site.task.objective.loss,
        "schedule": own.schedule,
    }


def example_on(site: Site) -> Any:
    """Return a batch of one example, where the edge computes."""
    return take(site.task.example_input(), slice(None), site.device)


def server_block_per_client(site: Site) -> SplitFedV1:
    """Return an edge with a server block for each client."""
    return SplitFedV1(site.new_model(), site.cut_of, aggregation=aggregation(site), **split_options(site))


def aggregation(site: Site) -> StrategyEdge | None:
    """Return what aggregates the clients' models by ``edge-strategy``; None for the plain average."""
    spec = site.federation.edge_strategy
    if spec.text == "FedAvg":
        return None
    strategy = spec.build(ONE_NODE)
    check_minimum(f"edge {site.name!r}", strategy, site.size, "node")
    return StrategyEdge(strategy, site.seed, spec.name)


def the_cut(site: Site) -> int:
    """Return the one cut of an edge whose clients share a server block."""
    (cut,) = {site.cut_of(node_id) for node_id in site.client_of}
    return cut


def head_weights(model: nn.Module) -> ArrayRecord:
    """Return the weights of a model's last block, by their names in the model."""
    name, head = list(model.named_children())[-1]
    return ArrayRecord({f"{name}.{key}": array for key, array in ArrayRecord(head.state_dict()).items()})


def check_cuts(cuts: tuple[int, ...], written: int | str, model: nn.Module) -> tuple[int, ...]:
    """Return the cuts of ``cut-layer``, all there are where it leaves them to plans.

    Raises
    ------
    UserError
        For one that the model has not.
    """
    names = [name for name, _ in model.named_children()]
    for cut in cuts:
        if cut not in legal_cuts(model):
            allowed = ", ".join(f"{i} (after {names[i - 1]})" for i in legal_cuts(model))
            raise bad_value("cut-layer", written, f"{allowed}: the head, {names[-1]}, stays at the server")
    return cuts or tuple(legal_cuts(model))
