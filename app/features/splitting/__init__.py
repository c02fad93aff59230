"""Models that are cut: where, what travels, and how the server's part trains."""

from flwr.serverapp.strategy import FedProx
from torch import nn

from espalier.app.features.case import Case
from espalier.app.features.feature import Feature, Unused
from espalier.app.ground.errors import bad_value
from espalier.app.ground.reasons import unused
from espalier.app.settings.sections import Split, StreamSettings
from espalier.app.settings.values import BEST_CUT
from espalier.app.tasks.kinds import task_kind
from espalier.clients.shared.batch_statistics import layer_with_statistics


def check(case: Case) -> None:
    """Refuse cuts, labels and certificates that other settings do not suit."""
    task = task_kind(case.data)
    if case.algorithm.splits:
        cuts = case.split.cut_layer
        if (case.algorithm.shares_server or case.algorithm.auxiliary) and len(set(cuts.items)) > 1:
            shared = "the server's block" if case.algorithm.shares_server else "an auxiliary head"
            raise bad_value(
                "cut-layer", cuts.text, f"one cut for all clients: in {case.algorithm.name} they share {shared}"
            )
        if case.algorithm.auxiliary:
            _check_local_losses(case)
        if task.grows and case.split.label_policy == "indices":
            allowed = f"'labels' for {case.data.source}: labels of future data can't be registered"
            raise bad_value("split.label-policy", "indices", allowed)
    chooses = case.algorithm.splits and not case.algorithm.shares_server and case.rule
    if case.split.cut_layer.is_best and not chooses:
        allowed = "a number, or selection = 'resource-aware' and an algorithm with a server block for each client"
        raise bad_value("cut-layer", BEST_CUT, allowed)
    if case.trains_in_parts:
        _check_parts(case)
    if bool(case.stream.certificate) != bool(case.stream.key):
        given = "stream.key" if case.stream.key else "stream.certificate"
        raise bad_value(given, case.stream.as_dict()[given], "both stream.certificate and stream.key, or neither")


def _check_local_losses(case: Case) -> None:
    """Refuse what there is no use for where the edge trains on activations with labels that come with replies."""
    name, split = case.algorithm.name, case.split
    if not split.tail_layer.is_none:
        raise bad_value(
            "tail-layer", split.tail_layer.text, f"'none': in {name} the edge computes its loss, from labels"
        )
    if case.transport.opens_streams:
        allowed = f"'messages': in {name} activations come with a client's reply"
        raise bad_value("split.transport", split.transport, allowed)


def _check_parts(case: Case) -> None:
    """Refuse parts of mini-batches where a step needs the whole, or those of several clients."""
    key, given, split = "stream.micro-batches", case.stream.micro_batches, case.split
    if not split.tail_layer.is_none:
        raise bad_value(
            key, given, f"1 with tail-layer = {split.tail_layer.text!r}: the client steps its tail in between"
        )
    if case.algorithm.shares_server and not case.algorithm.in_turn(split):
        allowed = f"1 with split.server-order = {split.server_order!r}, or 'one-by-one'"
        raise bad_value(key, given, f"{allowed}: clients take turns at the server's block, a mini-batch each")


def check_model(case: Case, model: nn.Module) -> None:
    """Refuse parts of mini-batches where the model computes statistics over the whole."""
    if case.trains_in_parts and (found := layer_with_statistics(model)):
        name, layer = found
        allowed = (
            f"1 for a model with {type(layer).__name__} ({name}), whose statistics are those of whole mini-batches"
        )
        raise bad_value("stream.micro-batches", case.stream.micro_batches, allowed)


def check_strategies(case: Case) -> None:
    """Refuse a proximal term where clients share the server's block, which has no start of its own to be drawn to."""
    for spec in case.strategies_here if case.algorithm.shares_server else ():
        if spec.has_any(FedProx):
            allowed = f"another strategy: in {case.algorithm.name} clients share the server's block"
            raise bad_value(spec.key, spec.text, allowed)


def without_use(case: Case) -> Unused:
    """Return what has no use by how the model is cut, and how the server trains."""
    algorithm, split, name = case.algorithm, case.split, f"algorithm = {case.algorithm.text!r}"
    streams = case.plan.resources == "measured" or case.splits_by_stream
    of_mini_batches = ("stream.payload", "stream.timeout", "stream.micro-batches")
    of_streams = of_mini_batches if case.devices_stay else StreamSettings.own_keys()
    has_order = algorithm.auxiliary or algorithm.in_turn(split.model_copy(update={"server_order": "interleaved"}))
    of_server = [key for key in Split.own_keys() if key.startswith("split.server-") and key != "split.server-order"]
    by_optimizer = f"split.server-optimizer = {split.server_optimizer!r}"
    no_label = f"with tail-layer = {split.tail_layer.text!r} no label leaves a client"
    # Where no model is cut, nothing of split training has any use, which is said elsewhere.
    return unused(
        (not case.fine_tune.steps, ("fine-tune.rate",), "fine-tune.steps = 0"),
        (not streams, of_streams, "no mini-batch goes through a stream: see split.transport"),
        (not algorithm.auxiliary, ("split.auxiliary", "split.upload-every"), f"in {name} gradients come back"),
        (algorithm.auxiliary and not split.upload_every, of_server, "split.upload-every = 0: its block does not train"),
        (not algorithm.shares_server, ("split.server-order",), f"{name} has a server block for each client"),
        (has_order, ("split.server-order",), f"{name} has an order of its own"),
        (split.server_optimizer != "sgd", ("split.server-momentum",), by_optimizer),
        (not split.tail_layer.is_none, ("split.label-policy",), no_label),
    )


SPLITTING = Feature(
    name="splitting",
    check=check,
    check_strategies=check_strategies,
    check_model=check_model,
    without_use=without_use,
)
