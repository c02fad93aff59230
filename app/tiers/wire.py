"""What an edge's run and the cloud's run tell each other: plain data, with clients by their number."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, MetricRecord, RecordDict

from espalier.clients.messages.arrays import to_record
from espalier.clients.messages.text import quoted
from espalier.clients.messages.train import ACCURACY, LOSS, TOP
from espalier.strategies import EdgeOutcome, Evaluation, Failure, Profile, Update
from espalier.strategies.outcomes import EVERYBODY
from espalier.strategies.screening import array_fault, figure_fault, in_form_of, size_fault
from espalier.strategies.split import Personalised

Wire = dict[str, Any]


def node_of(client: int) -> int:
    """Return the node id that stands for a client of an edge's host at the cloud."""
    return client + 1  # 0 is everybody


def client_of(node_id: int) -> int:
    """Return the client that `node_of` gave this node id."""
    return node_id - 1


def profile_to_wire(profile: Profile) -> Wire:
    """Return a client's profile."""
    return {
        "client": profile.partition_id,
        "num_train_examples": profile.num_train_examples,
        "num_test_examples": profile.num_test_examples,
        "class_counts": list(profile.class_counts),
    }


def profile_from_wire(wire: Wire, edge: str) -> Profile:
    """Return the profile of a client of an edge's host, as the cloud sees it."""
    if not 0 < int(wire["num_train_examples"]) < 2**63:
        raise ValueError(f"client {wire['client']!r} has {wire['num_train_examples']!r} training examples")
    return Profile(
        node_id=node_of(int(wire["client"])),
        partition_id=int(wire["client"]),
        edge=edge,
        num_train_examples=int(wire["num_train_examples"]),
        num_test_examples=int(wire["num_test_examples"]),
        class_counts=tuple(map(int, wire["class_counts"])),
    )


def outcome_to_wire(outcome: EdgeOutcome, client_of: Mapping[int, int]) -> Wire:
    """Return what an edge did in a global round; of its models only the last one travels.

    Parameters
    ----------
    outcome : EdgeOutcome
        The round.
    client_of : Mapping[int, int]
        Client number by node id.
    """
    rounds = [
        {
            "trained": update.arrays is not None,
            "metrics": update.metrics,
            "weight": update.weight,
            "participants": [client_of[n] for n in update.participants],
            "failures": _failures_to_wire(update.failures, client_of),
        }
        for update in outcome.updates
    ]
    return {"arrays": outcome.arrays, "rounds": rounds}


def updates_from_wire(wire: Wire, sent: ArrayRecord, edge_rounds: int, clients: Sequence[int]) -> list[Update]:
    """Return the edge rounds of a global round, each with the model at the end of the last.

    Parameters
    ----------
    wire : dict
        What `outcome_to_wire` made, somewhere else.
    sent : ArrayRecord
        The model that the edge started from.
    edge_rounds : int
        How many edge rounds there must be.
    clients : Sequence[int]
        The edge's clients.

    Raises
    ------
    ValueError, KeyError, TypeError
        If it is not such a thing, the model does not fit the one sent, or a number is not finite.
        Anything else too, since all of it is foreign: whoever calls catches every Exception.
    """
    arrays = wire["arrays"]
    if arrays is not None:
        if fault := array_fault(arrays, sent):
            raise ValueError(fault)
        arrays = in_form_of(sent, arrays)
    rounds = wire["rounds"]
    if len(rounds) != edge_rounds or (arrays is None) == any(one["trained"] for one in rounds):
        raise ValueError(f"its reply holds {len(rounds)} edge rounds that do not fit its model")
    return [
        Update(
            arrays=arrays if one["trained"] else None,
            metrics=_metrics(one["metrics"]),
            weight=_weight(one["weight"]),
            participants=_nodes(one["participants"], clients),
            failures=_failures_from_wire(one["failures"], clients),
        )
        for one in rounds
    ]


def evaluation_to_wire(evaluation: Evaluation, client_of: Mapping[int, int]) -> Wire:
    """Return an evaluation; parameters as of `outcome_to_wire`."""
    return {
        "metrics": evaluation.metrics,
        "weight": evaluation.weight,
        "replies": {client_of[n]: metrics for n, metrics in evaluation.replies.items()},
        "failures": _failures_to_wire(evaluation.failures, client_of),
    }


def evaluation_from_wire(wire: Wire, clients: Sequence[int], figures: Sequence[str]) -> Evaluation:
    """Return what `evaluation_to_wire` made, somewhere else; raises what `updates_from_wire` does.

    Each client's metrics have to hold these figures.
    """
    return Evaluation(
        metrics=_metrics(wire["metrics"]),
        weight=_weight(wire["weight"]),
        replies=_by_node(wire["replies"], clients, figures),
        failures=_failures_from_wire(wire["failures"], clients),
    )


def heads_to_wire(result: Personalised, client_of: Mapping[int, int]) -> Wire:
    """Return fine-tuned heads; parameters as of `outcome_to_wire`."""
    return {
        "heads": {client_of[n]: to_record(head) for n, head in result.heads.items()},
        "metrics": {client_of[n]: metrics for n, metrics in result.metrics.items()},
        "failures": _failures_to_wire(result.failures, client_of),
    }


def heads_from_wire(wire: Wire, clients: Sequence[int]) -> Personalised:
    """Return what `heads_to_wire` made, somewhere else; raises what `updates_from_wire` does."""
    heads = dict(zip(_nodes(wire["heads"], clients), wire["heads"].values(), strict=True))
    for head in heads.values():
        if fault := array_fault(head, head):
            raise ValueError(fault)
    return Personalised(
        heads={n: head.to_torch_state_dict() for n, head in heads.items()},
        metrics=_by_node(wire["metrics"], clients, (ACCURACY, LOSS)),
        failures=_failures_from_wire(wire["failures"], clients),
    )


def _failures_to_wire(failures: Sequence[Failure], client_of: Mapping[int, int]) -> list[tuple[int | None, str]]:
    return [(None if f.node_id == EVERYBODY else client_of[f.node_id], f.reason) for f in failures]


def _failures_from_wire(failures: Sequence[Any], clients: Sequence[int]) -> list[Failure]:
    return [
        Failure(EVERYBODY if client is None else _nodes([client], clients)[0], str(reason))
        for client, reason in failures
    ]


def _nodes(numbers: Any, clients: Sequence[int]) -> list[int]:
    numbers = list(numbers)
    if foreign := [number for number in numbers if not isinstance(number, int) or number not in clients]:
        raise ValueError(f"client {foreign[0]!r} is not one of the edge's")
    return [node_of(number) for number in numbers]


def _weight(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"a weight is {value!r}, expected a number >= 0")
    return value


def _metrics(value: Any) -> MetricRecord | None:
    if value is not None and not isinstance(value, MetricRecord):
        raise ValueError(f"metrics are a {type(value).__name__}")
    if fault := size_fault(RecordDict({"metrics": value or MetricRecord()})):
        raise ValueError(fault)
    for name, number in (value or {}).items():
        if not isinstance(number, int | float):
            raise ValueError(f"metric {name!r} is {quoted(number)}, expected a number")
        if fault := figure_fault(name, number):
            raise ValueError(fault)
    return value


def _by_node(metrics: Mapping[Any, Any], clients: Sequence[int], figures: Sequence[str]) -> dict[int, MetricRecord]:
    """Return each client's metrics of an evaluation, as the reports need them."""
    for own in metrics.values():
        _metrics(own)
        for name in figures:
            float(own[name])
        for name in own:
            if name.startswith(TOP):
                int(name.removeprefix(TOP))
    return dict(zip(_nodes(metrics, clients), metrics.values(), strict=True))
