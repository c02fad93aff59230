"""An edge's side of one edge round of secure aggregation, without any I/O."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from flwr.app import ArrayRecord, Error, Message, RecordDict

from espalier.clients.messages.secure import (
    MaskedReply,
    PublicKeys,
    SealedShares,
    SecureKeys,
    SecureOpening,
    SecureSeen,
    SecureShares,
    SecureUnmask,
    Seen,
    Unmasking,
)
from espalier.clients.shared.arrays import to_weights
from espalier.clients.shared.secure.fixed_point import MOST_CLIENTS, Form, Scale, Total, decoded
from espalier.clients.shared.secure.keys import commitment_to, mask_key, public_of, self_mask_key
from espalier.clients.shared.secure.masks import Masked
from espalier.clients.shared.secure.shares import combined
from espalier.clients.shared.secure.terms import SecureTerms

from ..edge_half import MOST_NUMBERS
from ..exchange import REJECTED
from ..replies import one_line
from ..reply_faults import content_of
from .graph import graph_of, is_connected

Reply = TypeVar("Reply")
Read = Callable[[RecordDict, int], Reply]  # of what a client sent, and its place


class VoidError(ValueError):
    """No sum can be used; where it is found out before clients unmask, nothing is revealed."""


@dataclass
class SecureRound:
    """One edge round.

    Parameters
    ----------
    server_round : int
        Its number.
    nodes : Sequence[int]
        Node ids of those who are asked, in client order; their places there are what clients are called.
    terms : SecureTerms
        What holds.
    most_weight : int
        The largest weight of a client.
    seed : int
        Of the order in which clients are neighbours.
    instruction : bytes
        The digest of what they are told to train.

    Attributes
    ----------
    lost : dict[int, Error]
        Errors of those who have dropped out, by node id.
    """

    server_round: int
    nodes: Sequence[int]
    terms: SecureTerms
    most_weight: int
    seed: int
    instruction: bytes
    lost: dict[int, Error] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._keys: dict[int, PublicKeys] = {}
        self._graph: dict[int, frozenset[int]] = {}
        self._sealed: dict[int, Mapping[int, bytes]] = {}
        self._masked: dict[int, MaskedReply] = {}
        self._signed: dict[bytes, bytes] = {}
        self._shares: dict[int, dict[int, bytes]] = {}  # by owner and holder
        self._form: Form | None = None
        if len(self.nodes) > MOST_CLIENTS:
            raise VoidError(f"{len(self.nodes)} clients are asked, {MOST_CLIENTS} can be at most")
        self.check_enough(len(self.nodes))

    # Before the training.

    def ask_for_keys(self) -> list[Message]:
        """Return the messages of the first exchange."""
        return [SecureKeys(self.server_round).to_message(node_id) for node_id in self.nodes]

    def take_keys(self, messages: Sequence[Message], replies: Sequence[Message]) -> None:
        """Take the answers in, and let neighbours be drawn."""
        self._keys = self._read(messages, replies, lambda content, place: PublicKeys.from_content(content))
        self.check_enough(len(self._keys))
        self._graph = graph_of(list(self._keys), self.terms.neighbours, self.seed)

    def ask_for_shares(self) -> list[Message]:
        """Return the messages of the second exchange."""
        return [
            SecureShares(self.server_round, place, {n: self._keys[n] for n in sorted(self._graph[place])}).to_message(
                self.nodes[place]
            )
            for place in self._keys
        ]

    def take_shares(self, messages: Sequence[Message], replies: Sequence[Message]) -> None:
        """Take the answers in."""

        def read(content: RecordDict, place: int) -> Mapping[int, bytes]:
            sealed = SealedShares.from_content(content).sealed
            if sealed.keys() != self._graph[place]:
                raise ValueError("it has not shared its secrets with all of its neighbours")
            return sealed

        self._sealed = self._read(messages, replies, read)
        self.check_enough(len(self._sealed))

    def opening_of(self, node_id: int) -> SecureOpening:
        """Return what goes along with the instruction that begins a client's training."""
        place = self._place(node_id)
        texts = {n: self._sealed[n][place] for n in sorted(self._graph[place]) if n in self._sealed}
        return SecureOpening(self.server_round, len(self._keys), self.most_weight, SealedShares(texts))

    # The training is over.

    def take_masked(
        self, messages: Sequence[Message], replies: Sequence[Message], sent: Mapping[int, ArrayRecord]
    ) -> None:
        """Take in the masked numbers of those who have trained; all others have dropped out.

        Parameters
        ----------
        messages, replies : Sequence[Message]
            The last of the training.
        sent : Mapping[int, ArrayRecord]
            The models, or blocks, that it began from, by node id.

        Raises
        ------
        VoidError
            If too few are left, or they do not hang together.
        """
        found = self._read(messages, replies, lambda content, place: MaskedReply.from_content(content))
        forms = [reply.form for reply in found.values()]
        usual = max(forms, key=forms.count, default=None)
        for place, reply in found.items():
            start = sent[self.nodes[place]]
            fault = _form_fault(reply, start) if reply.form == usual else "it sends other arrays than most"
            if not fault and self._form is None:
                self._form = Form(to_weights(start), reply.told, reply.without)
            if not fault and self._form is not None:
                sizes = reply.masked.values.size, reply.masked.exact.size
                fault = "" if sizes == self._form.sizes else "its masked numbers are of another length"
            if fault:
                self.lost[self.nodes[place]] = Error(REJECTED, fault)
            else:
                self._masked[place] = reply
        self.check_enough(len(self._masked))
        if not is_connected(self._graph, self._masked):
            raise VoidError("those who are left share no masks with each other: parts of their sum would show")
        for place in self._sealed:
            left = [n for n in self._graph[place] | {place} if n in self._masked]
            needed = self.terms.needed(len(self._graph[place]) + 1)
            if left and len(left) < needed:
                raise VoidError(f"{len(left)} of those who share masks with a client are left, {needed} needed")

    @property
    def survivors(self) -> list[int]:
        """Node ids of those whose numbers are in the sum."""
        return [self.nodes[place] for place in self._masked]

    @property
    def form(self) -> Form:
        """What the sum is of."""
        assert self._form is not None
        return self._form

    @property
    def has_loss(self) -> bool:
        """Whether clients tell their losses, under their masks."""
        return all(reply.has_loss for reply in self._masked.values())

    def ask_what_was_seen(self) -> list[Message]:
        """Return the messages of the exchange in which clients sign who survived; none where they sign nothing."""
        if not self.terms.signed:
            return []
        shown = {keys.signer: keys.commitment for keys in self._keys.values()}
        survived = tuple(self._keys[place].signer for place in self._masked)
        return [SecureSeen(self.server_round, shown, survived).to_message(n) for n in self.survivors]

    def take_seen(self, messages: Sequence[Message], replies: Sequence[Message]) -> None:
        """Take the signatures in; who sends none is still part of the sum."""
        read = self._read(messages, replies, lambda content, place: Seen.from_content(content), drops=False)
        for place, own in read.items():
            self._signed[self._keys[place].signer] = own.signature

    def ask_to_unmask(self) -> list[Message]:
        """Return the messages of the last exchange."""
        messages = []
        for place in self._masked:
            held = sorted({n for n in self._graph[place] if n in self._sealed} | {place})
            survived = tuple(n for n in held if n in self._masked)
            dropped = tuple(n for n in held if n not in self._masked)
            told = SecureUnmask(self.server_round, survived, dropped, self._signed)
            messages.append(told.to_message(self.nodes[place]))
        return messages

    def take_unmasking(self, messages: Sequence[Message], replies: Sequence[Message]) -> None:
        """Take the shares in; who brings none is still part of the sum."""
        read = self._read(messages, replies, lambda content, place: Unmasking.from_content(content), drops=False)
        for holder, own in read.items():
            for owner, share in own.shares.items():
                if owner in self._sealed and holder in self._graph[owner] | {owner}:
                    self._shares.setdefault(owner, {})[holder] = share

    def total(self) -> Total:
        """Return the sum without masks.

        Raises
        ------
        VoidError
            If too few shares are there to take them off, or a client has sent what is no part of a sum.
        """
        try:
            scale = Scale(self.terms.clip, len(self._keys), self.most_weight)
            return decoded(self._unmasked(self.form, scale), self.form, scale, len(self._masked))
        except ValueError as error:
            raise VoidError(str(error)) from None

    def check_enough(self, clients: int) -> None:
        """Raise VoidError if so few clients are left that their sum would tell of one."""
        if clients < self.terms.fewest:
            raise VoidError(f"{clients} of {len(self.nodes)} clients are left, {self.terms.fewest} needed")

    def _unmasked(self, form: Form, scale: Scale) -> Masked:
        sizes, total = form.sizes, Masked.zeros(*form.sizes)
        for place, reply in self._masked.items():
            total.add(reply.masked)
            seed = self._secret(place, commitment_to, self._keys[place].commitment)
            total.add(Masked.mask(self_mask_key(seed), *sizes), -1)
        sum_of = scale.sum_of(self.instruction)
        for place in self._sealed.keys() - self._masked.keys():
            touched = [n for n in self._graph[place] if n in self._masked]
            if not touched:
                continue
            seed = self._secret(place, public_of, self._keys[place].mask)
            for n in touched:
                mask = Masked.mask(mask_key(seed, self._keys[n].mask, *sum_of), *sizes)
                total.add(mask, -1 if n < place else 1)  # what the survivor has added
        return total

    def _secret(self, place: int, shown: Callable[[bytes], bytes], expected: bytes) -> bytes:
        """Return a secret of a client from its shares, by what it has shown of it."""
        holders = sorted(self._graph[place] | {place})
        shares = {holders.index(n): share for n, share in self._shares.get(place, {}).items()}
        return combined(shares, self.terms.needed(len(holders)), lambda secret: shown(secret) == expected)

    def _place(self, node_id: int) -> int:
        return self.nodes.index(node_id)

    def _read(
        self, messages: Sequence[Message], replies: Sequence[Message], read: "Read[Reply]", *, drops: bool = True
    ) -> dict[int, Reply]:
        """Return what is read in good replies, by place; who sent another has dropped out."""
        found: dict[int, Reply] = {}
        for message, reply in zip(messages, replies, strict=True):
            node_id = message.metadata.dst_node_id
            place = self._place(node_id)
            try:
                found[place] = read(content_of(reply), place)
            except (ValueError, KeyError, TypeError) as error:
                if drops:
                    self.lost[node_id] = reply.error if reply.has_error() else Error(REJECTED, one_line(error))
        return found


def _form_fault(reply: MaskedReply, start: Mapping[str, object]) -> str:
    names = len(set(reply.told)) == len(reply.told) and len(reply.told) <= len(start) + MOST_NUMBERS
    return "" if names and set(reply.without) <= start.keys() else "it sends other arrays than its model has"
