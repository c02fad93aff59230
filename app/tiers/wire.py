"""What an edge's run and the cloud's run tell each other: plain data, with clients by their number."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, MetricRecord, RecordDict

from espalier.app.meters.bytes import KINDS, Link
from espalier.app.meters.seconds import OfEdge, Seconds
from espalier.clients.messages.profile import MOST_CLASSES
from espalier.clients.messages.train import NUM_EXAMPLES, TOP
from espalier.clients.shared.arrays import to_record
from espalier.clients.shared.text import quoted
from espalier.strategies import DeviceProfile, EdgeOutcome, Evaluation, Failure, Profile, Update
from espalier.strategies.compression import Uplinks
from espalier.strategies.outcomes import EVERYBODY, failures_as_data, update_as_data
from espalier.strategies.reply_faults import array_fault, figure_fault, loss_faults, share_fault, size_fault
from espalier.strategies.reply_forms import in_form_of
from espalier.strategies.split import Personalised

Wire = dict[str, Any]
DIRECTIONS = ("downlink", "uplink")
LIMIT = 2**63  # of counts and amounts
# What `EdgeResources` reports of an edge round: numbers of clients, and a figure for each that was selected.
CLIENTS_OF_A_PLAN = ("eligible", "eligible_at_full_power", "selected", "late", "spare")
WHOLE_OF_A_CLIENT = ("local_rounds", "option")
OF_A_CLIENT = (*WHOLE_OF_A_CLIENT, "frequency_hz", "power_watts", "compute_joules", "upload_joules")
OF_A_PLAN = frozenset((*CLIENTS_OF_A_PLAN, *OF_A_CLIENT, "seconds", "short", "converged"))


@dataclass(frozen=True)
class Counted:
    """What an edge counted while it served a request.

    Parameters
    ----------
    sent : Mapping[tuple[str, str], int]
        Bytes between its clients and itself, by direction and kind.
    plans : Sequence[tuple[int, dict]]
        Number and report of each edge round that was planned.
    seconds : OfEdge, optional
        How long its clients and itself took in training; None of other requests.
    """

    sent: Mapping[tuple[str, str], int]
    plans: Sequence[tuple[int, dict[str, Any]]]
    seconds: OfEdge | None


def node_of(client: int) -> int:
    """Return the node id that stands for a client of an edge's host at the cloud."""
    return client + 1  # 0 is everybody


def profile_to_wire(profile: Profile) -> Wire:
    """Return a client's profile."""
    return {
        "client": profile.partition_id,
        "num_train_examples": profile.num_train_examples,
        "num_test_examples": profile.num_test_examples,
        "class_counts": list(profile.class_counts),
        "device": profile.device.to_config() if profile.device else {},
    }


def profile_from_wire(wire: Wire, edge: str) -> Profile:
    """Return the profile of a client of an edge's host, as the cloud sees it."""
    for name, least in (("num_train_examples", 1), ("num_test_examples", 0)):
        if type(wire[name]) is not int or not least <= wire[name] < LIMIT:
            raise ValueError(f"{name} of client {wire['client']!r} is {wire[name]!r}")
    client, counts = wire["client"], wire["class_counts"]
    if type(client) is not int or not 0 <= client < LIMIT:
        raise ValueError(f"a client is {client!r}")
    if len(counts) > MOST_CLASSES or not all(type(count) is int and 0 <= count < LIMIT for count in counts):
        raise ValueError(f"class_counts of client {client} are not {MOST_CLASSES} numbers at most")
    return Profile(
        node_id=node_of(client),
        partition_id=client,
        edge=edge,
        num_train_examples=wire["num_train_examples"],
        num_test_examples=wire["num_test_examples"],
        class_counts=tuple(counts),
        device=DeviceProfile.from_config(wire["device"]),
    )


def outcome_to_wire(outcome: EdgeOutcome, sent: Mapping[str, ArrayRecord] | None, client_of: Mapping[int, int]) -> Wire:
    """Return what an edge did in a global round; of its models only the last one travels.

    Parameters
    ----------
    outcome : EdgeOutcome
        The round.
    sent : Mapping[str, ArrayRecord], optional
        What its model travels as, by the names of the records; None where it gave none.
    client_of : Mapping[int, int]
        Client number by node id.
    """
    return {"sent": sent, "rounds": [update_as_data(update, client_of) for update in outcome.updates]}


def updates_from_wire(
    wire: Wire, start: ArrayRecord, edge_rounds: int, clients: Collection[int], uplinks: Uplinks
) -> list[Update]:
    """Return the edge rounds of a global round, each with the model at the end of the last.

    Parameters
    ----------
    wire : dict
        What `outcome_to_wire` made, somewhere else.
    start : ArrayRecord
        The model that the edge started from.
    edge_rounds : int
        How many edge rounds there must be.
    clients : Collection[int]
        The edge's clients.
    uplinks : Uplinks
        Reads its model.

    Raises
    ------
    ValueError, KeyError, TypeError
        If it is not such a thing, the model does not fit the one sent, or a number is not finite.
        Anything else too, since all of it is foreign: whoever calls catches every Exception.
    """
    arrays = None
    if wire["sent"] is not None:
        arrays = uplinks.read(wire["sent"], start)
        if fault := array_fault(arrays, start):
            raise ValueError(fault)
        arrays = in_form_of(start, arrays)
    rounds = wire["rounds"]
    if any(type(one["trained"]) is not bool for one in rounds):
        raise ValueError("'trained' of an edge round is no boolean")
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


def counted_to_wire(
    counts: Counter[Link], plans: Sequence[tuple[int, dict[str, Any]]], seconds: OfEdge | None = None
) -> Wire:
    """Return what an edge counted: bytes, the number and report of each edge round that was planned, and seconds."""
    sent = [(link.direction, link.kind, count) for link, count in sorted(counts.items())]
    counted: Wire = {"sent": sent, "plans": list(plans)}
    if seconds:
        clients = {client: _seconds_to_wire(own) for client, own in seconds.clients.items()}
        counted["seconds"] = {"clients": clients, "edge": _seconds_to_wire(seconds.edge)}
    return counted


def _seconds_to_wire(seconds: Seconds) -> list[float]:
    return [seconds.training, seconds.waiting, seconds.transfer, seconds.edge_rounds]


def counted_from_wire(wire: Wire, clients: Collection[int], edge_rounds: range) -> Counted:
    """Return what `counted_to_wire` made, somewhere else; raises what `updates_from_wire` does.

    Parameters
    ----------
    wire : dict
        What an edge says.
    clients : Collection[int]
        The edge's clients.
    edge_rounds : range
        Numbers of the edge rounds that may have been planned.
    """
    sent: dict[tuple[str, str], int] = {}
    for direction, kind, count in wire["sent"]:
        if direction not in DIRECTIONS or kind not in KINDS or (direction, kind) in sent:
            raise ValueError(f"its bytes are of {direction!r}, {kind!r}")
        if type(count) is not int or not 0 <= count < LIMIT:
            raise ValueError(f"its bytes of {kind!r} are {count!r}")
        sent[direction, kind] = count
    numbers = [number for number, _ in wire["plans"]]
    if numbers != sorted(set(numbers)) or any(type(n) is not int or n not in edge_rounds for n in numbers):
        raise ValueError(f"its plans are of edge rounds {numbers}")
    plans = [(number, _plan(report, clients)) for number, report in wire["plans"]]
    return Counted(sent, plans, _seconds_from_wire(wire["seconds"], clients) if "seconds" in wire else None)


def _seconds_from_wire(wire: Wire, clients: Collection[int]) -> OfEdge:
    """Return the times of an edge and of its clients."""
    own = wire["clients"]
    _nodes(own, clients)  # raises for others
    return OfEdge({client: _as_seconds(values) for client, values in own.items()}, _as_seconds(wire["edge"]))


def _as_seconds(values: Any) -> Seconds:
    training, waiting, transfer, edge_rounds = values
    amounts = (training, waiting, transfer)
    if type(edge_rounds) is not int or not all(_is_amount(one, (int, float)) for one in (*amounts, edge_rounds)):
        raise ValueError("its seconds are no numbers >= 0")
    return Seconds(training, waiting, transfer, edge_rounds)


def _plan(report: Any, clients: Collection[int]) -> dict[str, Any]:
    """Return the report of an edge round that was planned, if it is one of these clients."""
    if not isinstance(report, dict) or report.keys() != OF_A_PLAN:
        raise ValueError("a plan has other fields than a report")
    for name in CLIENTS_OF_A_PLAN:
        numbers = report[name]
        if not isinstance(numbers, list) or any(type(n) is not int or n not in clients for n in numbers):
            raise ValueError(f"{name!r} of a plan holds others than the edge's clients")
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"{name!r} of a plan holds a client twice")
    for name in OF_A_CLIENT:
        kinds = (int,) if name in WHOLE_OF_A_CLIENT else (int, float)
        values = report[name]
        if (
            not isinstance(values, list)
            or len(values) != len(report["selected"])
            or not all(_is_amount(value, kinds) for value in values)
        ):
            raise ValueError(f"{name!r} of a plan is no number >= 0 for each selected client")
    if not _is_amount(report["seconds"], (int, float)):
        raise ValueError("'seconds' of a plan is no number >= 0")
    for name in ("short", "converged"):
        if type(report[name]) is not bool:
            raise ValueError(f"{name!r} of a plan is no boolean")
    for name in ("late", "spare"):
        if not set(report[name]) <= set(report["selected"]):
            raise ValueError(f"{name!r} of a plan holds others than those selected")
    return report


def _is_amount(value: Any, kinds: tuple[type, ...]) -> bool:
    return type(value) in kinds and 0 <= value < LIMIT


def evaluation_to_wire(evaluation: Evaluation, client_of: Mapping[int, int]) -> Wire:
    """Return an evaluation; parameters as of `outcome_to_wire`."""
    return {
        "metrics": evaluation.metrics,
        "weight": evaluation.weight,
        "replies": {client_of[n]: metrics for n, metrics in evaluation.replies.items()},
        "failures": failures_as_data(evaluation.failures, client_of),
    }


def evaluation_from_wire(wire: Wire, clients: Collection[int], figures: Sequence[str]) -> Evaluation:
    """Return what `evaluation_to_wire` made, somewhere else; raises what `updates_from_wire` does.

    Each client's metrics have to hold these figures.
    """
    return Evaluation(
        metrics=_evaluated(wire["metrics"]),
        weight=_weight(wire["weight"]),
        replies=_by_node(wire["replies"], clients, figures),
        failures=_failures_from_wire(wire["failures"], clients),
    )


def heads_to_wire(result: Personalised, client_of: Mapping[int, int]) -> Wire:
    """Return fine-tuned heads; parameters as of `outcome_to_wire`."""
    return {
        "heads": {client_of[n]: to_record(head) for n, head in result.heads.items()},
        "metrics": {client_of[n]: metrics for n, metrics in result.metrics.items()},
        "failures": failures_as_data(result.failures, client_of),
    }


def heads_from_wire(
    wire: Wire, clients: Collection[int], figures: Sequence[str], head: ArrayRecord | None
) -> Personalised:
    """Return what `heads_to_wire` made, somewhere else; `figures` and errors as of `evaluation_from_wire`.

    Every client that was evaluated has to have a head like `head`; where that is None, none leaves its client.
    """
    heads = dict(zip(_nodes(wire["heads"], clients), wire["heads"].values(), strict=True))
    if head is None and heads:
        raise ValueError(f"it has heads of clients {sorted(wire['heads'])}, which keep theirs")
    if head is not None and (without := sorted(wire["metrics"].keys() - wire["heads"].keys())):
        raise ValueError(f"it has no heads of clients {without}, which it evaluated")
    formed = {n: _as_head(own, head).to_torch_state_dict() for n, own in heads.items()} if head is not None else {}
    return Personalised(
        heads=formed,
        metrics=_by_node(wire["metrics"], clients, figures),
        failures=_failures_from_wire(wire["failures"], clients),
    )


def _as_head(own: ArrayRecord, head: ArrayRecord) -> ArrayRecord:
    if fault := array_fault(own, head):
        raise ValueError(f"a head: {fault}")
    return in_form_of(head, own)


def _failures_from_wire(failures: Sequence[Any], clients: Collection[int]) -> list[Failure]:
    """Return the first failure of each client, and of the edge itself: an edge's list may be as long as it likes."""
    reasons: dict[int, str] = {}
    for client, reason in failures:
        if not isinstance(reason, str):
            raise ValueError(f"a reason is {quoted(reason)}, expected a text")
        reasons.setdefault(EVERYBODY if client is None else _nodes([client], clients)[0], reason)
    return [Failure(node_id, reason) for node_id, reason in reasons.items()]


def _nodes(numbers: Any, clients: Collection[int]) -> list[int]:
    numbers = list(numbers)
    if foreign := [number for number in numbers if type(number) is not int or number not in clients]:
        raise ValueError(f"client {foreign[0]!r} is not one of the edge's")
    if len(set(numbers)) < len(numbers):
        raise ValueError("a client is there twice")
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


def _evaluated(value: Any) -> MetricRecord | None:
    for name, number in (_metrics(value) or {}).items():
        if fault := share_fault(name, number):
            raise ValueError(fault)
    return value


def _by_node(metrics: Mapping[Any, Any], clients: Collection[int], figures: Sequence[str]) -> dict[int, MetricRecord]:
    """Return each client's metrics of an evaluation, as the reports need them."""
    for own in metrics.values():
        _evaluated(own)
        for name in figures:
            float(own[name])
        if not _is_amount(count := own.get(NUM_EXAMPLES, 0), (int, float)):
            raise ValueError(f"metric {NUM_EXAMPLES!r} is {quoted(count)}, expected a number >= 0")
        for name in own:
            if name.startswith(TOP):
                int(name.removeprefix(TOP))
    for fault in filter(None, loss_faults(list(metrics.values()))):
        raise ValueError(fault)
    return dict(zip(_nodes(metrics, clients), metrics.values(), strict=True))
