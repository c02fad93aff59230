"""Bytes by edge, tier, direction and kind, counted by watching the messages."""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Mapping
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from espalier.clients.messages import Instruction
from espalier.clients.messages.edge import PAYLOAD
from espalier.clients.messages.split_names import (
    ACTIVATIONS,
    CLIENT_BLOCK,
    CUT_GRADIENT,
    EVALUATE_FRONT,
    EVALUATE_OUTPUTS,
    FEATURE_GRADIENT,
    FEATURES,
    INDICES,
    LABELS,
    LENGTHS,
)
from espalier.clients.messages.train import (
    ACCUMULATED_GRADIENT,
    ARRAYS,
    CLIENT_HALF,
    EDGE_HALF,
    EVALUATE,
    TRAIN,
    TRAIN_ACCUMULATED,
)
from espalier.clients.shared.compression.updates import COMPRESSED
from espalier.clients.shared.lanes import Sent
from espalier.clients.shared.tensor_array import num_bytes
from espalier.strategies import Observer, Update

EVALUATION = "evaluation"
OTHER = "other"
# Whoever sends a record names it: of all else there could be as many kinds, and as long ones, as somebody likes.
KINDS = frozenset(
    {
        *("model", "config", "metrics", EVALUATION, OTHER, ACCUMULATED_GRADIENT, PAYLOAD, EDGE_HALF, CLIENT_HALF),
        *(CLIENT_BLOCK, ACTIVATIONS, CUT_GRADIENT, FEATURES, FEATURE_GRADIENT, INDICES, LABELS, LENGTHS),
    }
)
EVALUATIONS = (EVALUATE, EVALUATE_FRONT, EVALUATE_OUTPUTS)


class Link(NamedTuple):
    """One direction between a tier and those below it, for one kind of payload."""

    edge: str
    tier: str
    direction: str
    kind: str


class ByteMeter(Observer):
    """Counts the payload bytes of all messages and streams.

    Kinds are ``model``, ``config`` and ``metrics`` for training, ``accumulated-gradient`` with RawHFL, in split
    training the names of the records (``client-block``, ``activations``, ``cut-gradient``, ``indices`` or
    ``labels``, ``lengths``; with two cuts ``features`` and ``feature-gradient``), ``evaluation`` for whatever an
    evaluation sends, and ``other`` for records of any other name, as a strategy of one's own may send. Tier ``edge`` is
    between clients and their edge, tier ``cloud`` between edges and the cloud.

    Of the frames of a stream the values of the tensor, with the scales of int8, and the labels or indices are counted,
    under the names that they have in messages. NumPy's headers, which records add, and the frames' own are not in them.

    Parameters
    ----------
    tier_names : Mapping[str, str]
        The tiers to count, and the name that each is counted under. A flat algorithm's one group of clients is the
        cloud's own: its tier "edge" is counted as "cloud", and there is no other.
    """

    def __init__(self, tier_names: Mapping[str, str]) -> None:
        self._tier_names = tier_names
        self.counts: Counter[Link] = Counter()
        self._going = defaultdict[str, Counter[Link]](Counter)  # of edge rounds that go on, by edge
        self._over = defaultdict[str, dict[int, Counter[Link]]](dict)  # of those that are over, by edge and number
        self._beside = defaultdict[str, Counter[Link]](Counter)  # of no edge round, by edge
        self._lock = Lock()
        self._sizes: dict[Hashable, dict[str, int]] = {}  # of what would have been sent

    def on_message(self, tier: str, edge: str, direction: str, message: Message) -> None:
        """Count the records of a message; error replies carry none."""
        if tier not in self._tier_names or not message.has_content():
            return
        counts = payload_bytes(message.metadata.message_type, message.content)
        self._add(tier, edge, direction, counts)

    def on_bytes(self, edge: str, direction: str, kind: str, count: int) -> None:
        """Count what a frame of a stream between clients and their edge holds; may be called from any thread."""
        if "edge" in self._tier_names:
            self._add("edge", edge, direction, {kind: count})

    def on_passed(self, edge: str, direction: str, passed: Sent | Instruction) -> None:
        """Count what a message between clients and their edge would have held, had it been sent."""
        if "edge" not in self._tier_names:
            return
        # All of a kind have the same keys, and numbers of the same size.
        tensors = [(v.shape, v.dtype) for v in vars(passed).values() if isinstance(v, Tensor | np.ndarray)]
        kind = type(passed), *tensors, getattr(passed, "label_policy", None)
        if kind not in self._sizes:
            self._sizes[kind] = payload_bytes("", passed.to_content())
        self._add("edge", edge, direction, self._sizes[kind])

    def add(self, edge: str, counts: Mapping[tuple[str, str], int]) -> None:
        """Count what an edge in another process has counted between its clients and itself, by direction and kind."""
        for (direction, kind), count in counts.items():
            self._add("edge", edge, direction, {kind: count})

    def so_far(self) -> Counter[Link]:
        """Return what was counted since the last call of `drain`."""
        with self._lock:
            return self.counts.copy()

    def drain(self, at_work: Mapping[str, Collection[int]] = {}) -> Counter[Link]:
        """Return what was counted since the last call and start again; of edges only `at_work` can still be taken."""
        with self._lock:
            counts, self.counts = self.counts, Counter()
        for edge in {link.edge for link in counts} | self._over.keys():
            self.take(edge, at_work.get(edge, ()))
        return counts

    def on_edge_round(self, server_round: int, edge: str, update: Update) -> None:
        """Hold apart what was counted in an edge round: its edge may go on before it comes in."""
        with self._lock:
            self._over[edge].setdefault(server_round, Counter()).update(self._going.pop(edge, {}))

    def take(self, edge: str, at_work: Collection[int] = ()) -> Counter[Link]:
        """Return, once, what was counted of an edge, but for its edge rounds `at_work`, which have not come in."""
        with self._lock:
            taken, rounds = self._beside.pop(edge, Counter()), self._over.pop(edge, {})
            for number in rounds.keys() - set(at_work):
                taken.update(rounds.pop(number))
            if rounds:
                self._over[edge] = rounds
            if not at_work:
                taken.update(self._going.pop(edge, {}))
        return taken

    def state_dict(self) -> dict[str, Any]:
        """Return what was counted in edge rounds that have not come in, as plain data: an edge's come in together."""
        return {
            edge: {
                str(min(rounds)): [
                    [*link[1:], count] for link, count in sorted(sum(rounds.values(), Counter()).items())
                ]
            }
            for edge, rounds in self._over.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        for edge, rounds in state.items():
            self._over[edge] = {
                int(number): Counter({Link(edge, *map(str, names)): int(count) for *names, count in own})
                for number, own in rounds.items()
            }

    def _add(self, tier: str, edge: str, direction: str, counts: Mapping[str, int]) -> None:
        with self._lock:
            for kind, count in counts.items():
                link = Link(edge, self._tier_names.get(tier, tier), direction, kind)
                # A model goes up when its edge comes in, and an edge that has begun anew may be in its next part then.
                has_come_in = kind == EVALUATION or (tier != "edge" and direction == "uplink")
                self.counts[link] += count
                (self._beside if has_come_in else self._going)[edge][link] += count


def payload_bytes(message_type: str, content: RecordDict) -> dict[str, int]:
    """Return the bytes of a message's records by kind."""
    counts: dict[str, int] = {}
    for name, record in content.items():
        if message_type in EVALUATIONS:
            kind = EVALUATION
        elif isinstance(record, ArrayRecord):
            of_half = name in (EDGE_HALF, CLIENT_HALF)
            is_model = (message_type == TRAIN and not of_half) or (message_type == TRAIN_ACCUMULATED and name == ARRAYS)
            name = CLIENT_BLOCK if name == COMPRESSED and CLIENT_BLOCK in content else name
            kind = "model" if is_model else name if name in KINDS else OTHER
        else:
            kind = "config" if isinstance(record, ConfigRecord) else "metrics"
        counts[kind] = counts.get(kind, 0) + record_bytes(record)
    return counts


def record_bytes(record: ArrayRecord | ConfigRecord | MetricRecord) -> int:
    """Return the bytes of a record as Flower counts them; those of a tensor in this process are not made for it."""
    if isinstance(record, ArrayRecord):
        return sum(len(name) + num_bytes(array) for name, array in record.items())
    return config_bytes(record) if isinstance(record, ConfigRecord) else record.count_bytes()


def config_bytes(record: ConfigRecord) -> int:
    """Return the bytes of a config record; an empty text or list, on which Flower's own count fails, has its key's."""
    return sum(len(key) + _value_bytes(value) for key, value in record.items())


def _value_bytes(value: object) -> int:
    if isinstance(value, list):
        return sum(map(_value_bytes, value))
    if isinstance(value, (str, bytes)):
        return len(value)
    return 1 if isinstance(value, bool) else 8


def nested(counts: Mapping[Link, int]) -> dict[str, Any]:
    """Return counts as ``{tier: {direction: {kind: bytes}}}``, of all edges together."""
    result: dict[str, Any] = {}
    for link, count in sorted(counts.items()):
        kinds = result.setdefault(link.tier, {}).setdefault(link.direction, {})
        kinds[link.kind] = kinds.get(link.kind, 0) + count
    return result


def by_edge(counts: Mapping[Link, int]) -> dict[str, dict[Link, int]]:
    """Return the counts of each edge by its name."""
    result: dict[str, dict[Link, int]] = {}
    for link, count in counts.items():
        result.setdefault(link.edge, {})[link] = count
    return result
