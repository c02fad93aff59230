"""How long updates, or activations, usually are."""

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import median, median_high
from typing import Any, Final

FEW: Final = 3  # fewer replies than these have no majority
KEPT: Final = 8  # nodes, and lengths of each
WIDER: Final = 10.0  # so many times as long as what was usual may be usual where that no longer is


class Lengths:
    """The lengths that are usual at an edge: of this round's replies, or of those that were accepted before.

    Of three replies or more, the median is that of an honest one, if most are. Where a round has fewer, it is the
    median over the last nodes of what each of them sent before: a node has one vote, however often it replies. If a
    round accepts nobody, and more than half of the edge's nodes have been refused, ten times as much becomes usual.
    When one of the refused nodes is then accepted, the lengths before it are forgotten. A node alone among others gains
    nothing by trying again.
    """

    def __init__(self) -> None:
        self._kept: dict[str, list[float]] = {}  # lengths that were accepted, by node, the last one last
        self._usual = 0.0  # by these; asked for at every mini-batch
        self._refused: set[str] = set()  # since they were accepted, and since it is wider
        self._waiting: set[str] = set()  # refused before it became wider
        self._wider = 1.0

    def usual(self, lengths: Sequence[float], otherwise: float = 0.0) -> float:
        """Return what lengths are held against; infinite if there is nothing.

        Parameters
        ----------
        lengths : Sequence[float]
            Those of this round.
        otherwise : float (default: 0.0)
            Stands in where there are few and none were before, unless there are several and all are longer; 0 is
            nothing.
        """
        if len(lengths) >= FEW and (middle := median_high(lengths)) > 0:
            return middle
        if self._usual > 0:
            return self._wider * self._usual
        if otherwise > 0 and lengths:
            return max(self._wider * otherwise, min(lengths) if len(lengths) > 1 else 0.0)
        return math.inf

    def note(self, accepted: Mapping[str, float], refused: Collection[str], num_nodes: int) -> None:
        """Remember who was accepted in a round, with what length, and who was refused, of so many nodes at the edge."""
        if self._waiting & accepted.keys():
            self._kept, self._waiting, self._wider = {}, set(), 1.0
        for node, length in sorted(accepted.items()):  # in no order of arrival
            if 0 < length < math.inf:
                self._kept[node] = [*self._kept.pop(node, []), length][-KEPT:]
        self._remember(list(self._kept.items())[-KEPT:])
        self._refused = (self._refused - accepted.keys()) | set(refused)
        if not accepted and 2 * len(self._refused) > max(num_nodes, len(refused)):
            self._wider *= WIDER
            self._waiting |= self._refused
            self._refused = set()

    @property
    def are_known(self) -> bool:
        """Whether there were rounds before."""
        return bool(self._kept)

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        return {
            "kept": [(node, list(lengths)) for node, lengths in self._kept.items()],
            "refused": sorted(self._refused),
            "waiting": sorted(self._waiting),
            "wider": self._wider,
        }

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[float]) -> None:
        """Take back what `state_dict` returned; earlier editions had one length for each of the last rounds."""
        if not isinstance(state, Mapping):
            state = {"kept": [(f"round {i}", [length]) for i, length in enumerate(state)]}
        self._remember(state["kept"])
        self._refused, self._waiting = set(state.get("refused", ())), set(state.get("waiting", ()))
        self._wider = state.get("wider", 1.0)

    def _remember(self, kept: Sequence[tuple[str, Sequence[float]]]) -> None:
        self._kept = {node: list(lengths) for node, lengths in kept}
        self._usual = median(map(median, self._kept.values())) if self._kept else 0.0
