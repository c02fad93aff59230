"""What the edges of all split algorithms have in common."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from flwr.app import ArrayRecord
from torch import nn

from espalier.app.algorithms.algorithm import ONE_NODE, Algorithm, Site
from espalier.app.algorithms.stacked_servers import stacked_servers
from espalier.app.algorithms.strategies import fedavg_of_all
from espalier.app.ground.errors import UserError, bad_value
from espalier.app.settings.sections import AS_CLIENTS, Split
from espalier.clients.half import ClientHalf
from espalier.clients.messages.split_names import SPLIT_LOCAL
from espalier.clients.shared.cut import Cut, as_blocks
from espalier.clients.shared.nested import rows_on
from espalier.clients.shared.tied import other_names
from espalier.clients.split.local_loss import train_by_local_loss
from espalier.clients.task import LocalTraining
from espalier.clients.whole.training import make_optimizer
from espalier.strategies import StrategyEdge
from espalier.strategies.flower_strategies import check_minimum
from espalier.strategies.split import LocalLossTransport, SplitFedV1
from espalier.strategies.split.cuts import legal_cuts, weight_on_both_sides

# What clients do that train by auxiliary heads.
LOCAL_LOSS_CLIENT = ClientHalf(handlers={SPLIT_LOCAL: train_by_local_loss})


def split_options(site: Site) -> dict[str, Any]:
    """Return what every `espalier.strategies.split.SplitEdge` takes, from the sections of the run config."""
    own = site.task.training
    return {
        "make_optimizer": partial(make_optimizer, training=server_training(site)),
        "input_shape": rows_on(site.task.example_input(), slice(None), site.device),
        "evaluation": fedavg_of_all(),
        "label_policy": site.split.label_policy,
        "label_shape": site.task.label_shape,
        "participation": site.federation.participation,
        "max_batch": site.train.batch_size,
        "max_steps": site.max_steps,
        "seed": site.seed,
        "transport": site.transport if site.auxiliary is None else LocalLossTransport(site.split.upload_every),
        "loss": site.task.objective.loss,
        "schedule": own.schedule,
        "evaluates_whole": site.split.evaluate == "whole",
    }


def server_training(site: Site) -> LocalTraining:
    """Return how the server's blocks train, in the first round."""
    split, own = site.split, site.task.training
    assert split.server_optimizer != AS_CLIENTS  # a config that was parsed says what that is
    return LocalTraining(
        optimizer=own.optimizer if callable(own.optimizer) else split.server_optimizer,
        learning_rate=split.server_learning_rate or site.train.learning_rate,
        momentum=float(split.server_momentum),
        weight_decay=float(split.server_weight_decay),
    )


def server_block_per_client(
    site: Site, *, freezes_head: bool = False, of: Callable[..., SplitFedV1] = SplitFedV1
) -> SplitFedV1:
    """Return an edge with a server block for each client, made by `of`; the head may keep its initial weights."""
    model = site.new_model()
    together = None
    if site.stacks:
        training = replace(server_training(site), schedule=site.task.training.schedule)
        together = stacked_servers(training, site.task.objective.loss)
    return of(
        model,
        site.cut_of,
        frozen=head_weights(model) if freezes_head else None,
        aggregation=aggregation(site),
        together=together,
        **split_options(site),
    )


def aggregation(site: Site) -> StrategyEdge | None:
    """Return what aggregates the clients' models by ``edge-strategy``; None for the plain average."""
    spec = site.federation.edge_strategy
    if spec.is_plain:
        return None
    strategy = spec.build(ONE_NODE)
    check_minimum(f"edge {site.name!r}", strategy, site.size, "node")
    return StrategyEdge(strategy, site.seed, spec.name)


def the_cut(site: Site) -> Cut:
    """Return the one cut of an edge whose clients share a server block."""
    (cut,) = {site.cut_of(node_id) for node_id in site.client_of}
    return cut


def head_weights(model: nn.Module) -> ArrayRecord:
    """Return the weights of a model's last block, by their names in the model."""
    name, head = list(model.named_children())[-1]
    return ArrayRecord({f"{name}.{key}": array for key, array in ArrayRecord(head.state_dict()).items()})


def check_head_is_apart(model: nn.Module) -> None:
    """Raise UserError where the head, which is to train or to be frozen by itself, shares a weight with the body."""
    head = f"{list(model._modules)[-1]}."
    for name, known in other_names(model).items():
        if name.startswith(head) != known.startswith(head):
            why = "of which the head's is frozen, or fine-tuned alone"
            raise UserError(f"{known} and {name} are one weight of the model, {why}; allowed are two weights")


def frozen_weights(algorithm: Algorithm, model: nn.Module) -> ArrayRecord:
    """Return the weights of a new model that are never trained and do not travel."""
    return head_weights(model) if algorithm.freezes_head else ArrayRecord()


def cuts_of(algorithm: Algorithm, split: Split, model: nn.Module) -> tuple[Cut, ...]:
    """Return the clients' cuts as `check_cuts` does; none for an algorithm that leaves models whole."""
    return check_cuts(split, model) if algorithm.splits else ()


def check_cuts(split: Split, model: nn.Module) -> tuple[Cut, ...]:
    """Return the clients' cuts in turn, by ``cut-layer`` and ``tail-layer``; all there are if plans choose.

    Raises
    ------
    UserError
        For one that the model has not.
    """
    names, legal, last = [name for name, _ in model.named_children()], legal_cuts(model), len(list(model.children()))
    why = f"the head, {names[-1]}, stays at the server"
    if not split.tail_layer.is_none:
        begins_at = split.tail_layer.begins_at(names)
        if begins_at is None or begins_at <= min(legal):
            allowed = ", ".join([*(f"{i} ({names[i]})" for i in range(min(legal) + 1, last)), "'none'"])
            raise bad_value("tail-layer", split.tail_layer.text, allowed)
        last, why = begins_at, f"the tail begins with {names[begins_at]}"
    shared = {cut: weight_on_both_sides(as_blocks(model), Cut(cut, last)) for cut in legal if cut < last}
    fitting = [cut for cut, weight in shared.items() if not weight]
    given = split.cut_layer.numbers(names) or tuple(fitting)
    for cut in given if fitting else [min(legal)]:
        if cut not in fitting:
            allowed = ", ".join(f"{i} (after {names[i - 1]})" for i in fitting) or "none"
            if cut is None:
                why = f"the blocks are {', '.join(names)}"
            elif cut < min(legal):
                why = f"nothing trains in front of {names[min(legal) - 1]}"
            elif shared.get(cut):
                why = f"{shared[cut]} is a weight of blocks on both sides of it"
            raise bad_value("cut-layer", split.cut_layer.text, f"{allowed}: {why}")
    return tuple(Cut(cut, last) for cut in given if cut is not None)
