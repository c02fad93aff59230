"""Activations are held against those of other clients, or of rounds before."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from logging import getLogger
from typing import Any, Final

from .bounds import ABSURD, Guard
from .lengths import FEW, Lengths

logger = getLogger("espalier.guard")
ROUNDED: Final = 1.0 + 1e-6


class ActivationGuard:
    """Judges the activations that come to an edge by the length of the longest sample's in a mini-batch.

    Parameters
    ----------
    guard, node_name
        As for `UpdateGuard`.

    Attributes
    ----------
    num_nodes : int
        Nodes that the edge has, those that take no part in a round included.
    """

    def __init__(self, guard: Guard, node_name: Callable[[int], str] = str) -> None:
        self.num_nodes = 1
        self._guard = guard
        self._norm = guard.activation_norm or ABSURD
        self._node_name = node_name
        self._lengths: dict[int, Lengths] = {}  # by the cut: other activations have other lengths
        self._longest: dict[int, tuple[int, float]] = {}  # the cut, and the longest of the round, by node id
        self._first: dict[int, tuple[int, float]] = {}  # likewise, of each client's first mini-batch
        self._refused: dict[int, int] = {}  # the cut, by node id

    @property
    def is_on(self) -> bool:
        """Whether anything is measured."""
        return self._guard.mode != "off"

    def begin_round(self) -> None:
        """Begin a round, or begin it anew."""
        self._longest, self._first, self._refused = {}, {}, {}

    def most(self, cut: int, lengths: Sequence[float] = ()) -> float:
        """Return how long activations may be.

        Parameters
        ----------
        cut : int
            Where the model is cut.
        lengths : Sequence[float] (default: none)
            Of all mini-batches that are served together. Fewer than three are held against rounds before; where there
            were none, `judge` says at the end of the round.
        """
        return self._norm * self._lengths.get(cut, Lengths()).usual(lengths)

    def admitted(self, node_id: int, cut: int, length: float, most: float | None = None) -> float:
        """Return by what to multiply a mini-batch's activations: 1, or less where they are to be clipped.

        Parameters
        ----------
        node_id, cut : int
            The client, and where its model is cut.
        length : float
            Of the longest sample's activations.
        most : float, optional (default: None)
            How long they may be, see `most`; None: as rounds before allow.

        Raises
        ------
        ValueError
            If they are longer than is allowed.
        """
        most, factor = self.most(cut) if most is None else most, 1.0
        if length > most and (self._guard.mode == "leave-out" or (self._guard.mode == "clip" and length == math.inf)):
            self._refused[node_id] = cut
            raise ValueError(self._too_long(length, most))
        if length > most and self._guard.mode == "clip":
            factor = most / length
        self._first.setdefault(node_id, (cut, length))
        return factor

    def took(self, node_id: int, cut: int, length: float) -> None:
        """Note that the server block has made a step with activations so long."""
        self._longest[node_id] = cut, max(length, self._longest.get(node_id, (cut, 0.0))[1])

    def knows(self, cut: int) -> bool:
        """Return whether there were rounds before with this cut."""
        return cut in self._lengths and self._lengths[cut].are_known

    def judge(self, by_first: bool = False) -> dict[int, str]:
        """Return what is wrong with the activations that were sent in the round, by node id; remember the others.

        Parameters
        ----------
        by_first : bool (default: False)
            The clients shared a server block, so that one who spoils it spoils what the others send then: what each
            sent first is what is usual.
        """
        faults: dict[int, str] = {}
        for cut in sorted({*(cut for cut, _ in self._longest.values()), *self._refused.values()}):
            lengths = {n: length for n, (own, length) in sorted(self._longest.items()) if own == cut}
            firsts = [length for own, length in self._first.values() if own == cut]
            most = self.most(cut, firsts if by_first else list(lengths.values()))
            # What was clipped to the bound may be beyond it by a rounding.
            beyond = {n: self._too_long(length, most) for n, length in lengths.items() if length > most * ROUNDED}
            refused = {*beyond, *(n for n, own in self._refused.items() if own == cut)}
            accepted = {self._node_name(n): length for n, length in lengths.items() if n not in refused}
            known = self._lengths.setdefault(cut, Lengths())
            known.note(accepted, [self._node_name(n) for n in refused], self.num_nodes)
            if self._guard.mode == "warn":
                for node_id, reason in beyond.items():
                    logger.warning("%s: %s", self._node_name(node_id), reason)
            else:
                faults |= beyond
        return faults

    def before_jump(self, clients: Sequence[int], unfit: Collection[int]) -> int | None:
        """Return after whose turn most clients sent activations of quite another length; None: after nobody's.

        Where one model goes from client to client, it is this one that may have spoilt it: an honest client's part of a
        round changes lengths by a few per cent.

        Parameters
        ----------
        clients : Sequence[int]
            Node ids, in the order of their turns.
        unfit : Collection[int]
            Those whose activations were not finite.
        """
        firsts = {n: math.inf if n in unfit else self._first[n][1] for n in clients if n in unfit or n in self._first}
        if len(firsts) < FEW or self._guard.mode == "warn":
            return None
        order, norm = list(firsts), self._norm
        for place in range(len(order) - 1, 0, -1):
            before, after = firsts[order[place - 1]], firsts[order[place]]
            if 0 < before < math.inf and not before / norm <= after <= before * norm:
                return order[place - 1] if 2 * (len(order) - place) > len(order) else None
        return None

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return what must survive an interruption."""
        return {str(cut): lengths.state_dict() for cut, lengths in self._lengths.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._lengths = {int(cut): Lengths() for cut in state}
        for cut, lengths in state.items():
            self._lengths[int(cut)].load_state_dict(lengths)

    def _too_long(self, length: float, most: float) -> str:
        key = "guard.activation-norm" if self._guard.activation_norm else "guard.mode"
        return f"a sample's activations are {length:.3g} long, where {most:.3g} is allowed ({key})"
