"""A client's side of one edge round of secure aggregation, without any I/O.

Each step is made once, in this order: `keys`, `share`, `open`, `mask`, with known keys `sign`, and `unmask`. A client
that was told otherwise refuses: an edge that repeats a step, or asks for both secrets of somebody, gets nothing. What
is kept between steps is plain data, since messages may reach different processes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from ..messages.secure import PublicKeys, SealedShares, SecureOpening, SecureSeen, SecureShares, SecureUnmask
from ..shared.secure.fixed_point import Form, Part, Scale, encoded
from ..shared.secure.keys import (
    KEY_BYTES,
    SEED_BYTES,
    agreed,
    commitment_to,
    is_signed,
    mask_key,
    new_seed,
    opened,
    public_of,
    sealed,
    self_mask_key,
    signature_of,
)
from ..shared.secure.masks import Masked
from ..shared.secure.shares import split
from ..shared.secure.terms import SecureTerms
from .identity import Identity

KEYS, SHARED, OPENED, MASKED, SIGNED = "keys", "shared", "opened", "masked", "signed"
PURPOSE_KEYS, PURPOSE_SEEN = "keys", "seen"
PURPOSE_SHARE = "share"
NO_SIGNERS: Final = "secure.signed is true and its node's config has no secure-key and secure-keys"
UNSIGNED: Final = "its node's config has secure-keys: it takes part with secure.signed = true alone"


@dataclass(frozen=True)
class SecureSession:
    """Where a client is in an edge round.

    Parameters
    ----------
    server_round : int
        The edge round.
    phase : str
        The last step that was made.
    mask_seed, self_seed, channel_seed : bytes
        Its secrets: of the masks that it shares with peers, of its own mask, and of sealed shares. They are gone as
        soon as they are of no more use.
    place : int
        Its own.
    peers : Mapping[int, PublicKeys]
        By place.
    held : Mapping[int, bytes]
        Shares that it holds, by the place of their owner, its own too: of the mask key, then of the self-mask.
    holders : int
        So many were to hold a share of its secrets, itself too.
    clients, most_weight : int
        See `SecureOpening`.
    instruction : bytes
        The digest of what it was told to train.
    shown : Mapping[bytes, bytes]
        With known keys the commitments that it has seen, its own too, by known key; later all that it has signed.
    survived : tuple[bytes, ...]
        Known keys, which it has signed.
    """

    server_round: int
    phase: str = KEYS
    mask_seed: bytes = field(default_factory=new_seed, repr=False)
    self_seed: bytes = field(default_factory=new_seed, repr=False)
    channel_seed: bytes = field(default_factory=new_seed, repr=False)
    place: int = 0
    peers: Mapping[int, PublicKeys] = field(default_factory=dict)
    held: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    holders: int = 1
    clients: int = 1
    most_weight: int = 1
    instruction: bytes = b""
    shown: Mapping[bytes, bytes] = field(default_factory=dict)
    survived: tuple[bytes, ...] = ()

    def keys(self, run_id: int, identity: Identity | None) -> PublicKeys:
        """Return the keys to show."""
        own = PublicKeys(public_of(self.mask_seed), public_of(self.channel_seed), commitment_to(self.self_seed))
        if identity is None:
            return own
        signature = signature_of(identity.signer, *_under_keys(run_id, self.server_round, own))
        return replace(own, signer=identity.public, signature=signature)

    def share(
        self, told: SecureShares, terms: SecureTerms, run_id: int, identity: Identity | None
    ) -> tuple[Self, SealedShares]:
        """Return where it goes on, and a sealed share of its secrets for each peer.

        Raises
        ------
        ValueError
            If there are too few peers, two of them have one key, or one is not known.
        """
        self.check(told.server_round, KEYS)
        if len(told.peers) + 1 < terms.fewest or told.place in told.peers:
            raise ValueError(f"{len(told.peers) + 1} clients share masks, {terms.fewest} needed")
        own = self.keys(run_id, None)
        for kind in ("mask", "channel"):
            if len({getattr(keys, kind) for keys in (own, *told.peers.values())}) <= len(told.peers):
                raise ValueError("two clients show the same key")
        shown = {}
        if identity is not None:
            _check_signed(told, run_id, identity)
            shown = {keys.signer: keys.commitment for keys in told.peers.values()} | {identity.public: own.commitment}
        holders = sorted((*told.peers, told.place))
        needed = terms.needed(len(holders))
        pairs = (split(seed, needed, len(holders)) for seed in (self.mask_seed, self.self_seed))
        shares = {place: b"".join(pair) for place, pair in zip(holders, zip(*pairs, strict=True), strict=True)}
        texts = {
            place: sealed(self._channel(keys, told.place, place), shares[place]) for place, keys in told.peers.items()
        }
        held = {told.place: shares[told.place]}
        going_on = replace(self, place=told.place, peers=told.peers, held=held, holders=len(holders), shown=shown)
        return replace(going_on, phase=SHARED), SealedShares(texts)

    def open(self, told: SecureOpening, terms: SecureTerms, instruction: bytes) -> Self:
        """Return where it goes on with the shares of its peers.

        Parameters
        ----------
        told : SecureOpening
            What goes along with the instruction that begins the training.
        terms : SecureTerms
            What the client goes by.
        instruction : bytes
            The digest of that instruction.

        Raises
        ------
        ValueError
            If there are too few, or one was not sealed for it.
        """
        self.check(told.server_round, SHARED)
        texts = told.shares.sealed
        if unknown := texts.keys() - self.peers.keys():
            raise ValueError(f"a share of client {min(unknown)} of the round, with whom it shares no mask")
        if len(texts) + 1 < max(terms.fewest, terms.needed(self.holders)):
            raise ValueError(f"shares of {len(texts)} of {len(self.peers)} clients are too few")
        held = {n: opened(self._channel(self.peers[n], n, self.place), text) for n, text in texts.items()}
        peers = {n: keys for n, keys in self.peers.items() if n in texts}
        return replace(
            self,
            phase=OPENED,
            held={**self.held, **held},
            peers=peers,
            clients=told.clients,
            most_weight=told.most_weight,
            instruction=instruction,
        )

    def mask(self, part: Part, form: Form, terms: SecureTerms) -> tuple[Self, Masked]:
        """Return where it goes on, and its part of the sum under its own mask and those that it shares.

        Raises
        ------
        ValueError
            What `encoded` raises.
        """
        self.check(self.server_round, OPENED)
        scale = Scale(terms.clip, self.clients, self.most_weight)
        masked, sizes, sum_of = encoded(part, form, scale), form.sizes, scale.sum_of(self.instruction)
        masked.add(Masked.mask(self_mask_key(self.self_seed), *sizes))
        for place, keys in self.peers.items():
            mask = Masked.mask(mask_key(self.mask_seed, keys.mask, *sum_of), *sizes)
            masked.add(mask, 1 if self.place < place else -1)
        return replace(self, phase=MASKED, mask_seed=b"", self_seed=b"", channel_seed=b""), masked

    def sign(self, told: SecureSeen, terms: SecureTerms, run_id: int, identity: Identity) -> tuple[Self, bytes]:
        """Return where it goes on, and its signature under who was in the round, and who survived.

        Raises
        ------
        ValueError
            If these are not clients that it knows, itself and its peers among them, with the keys that it has seen, or
            too few survived. Where clients share masks with all others, these must be all.
        """
        self.check(told.server_round, MASKED)
        survived, sharing = set(told.survived), {identity.public, *(keys.signer for keys in self.peers.values())}
        if told.shown.keys() - identity.known or self.shown.items() - told.shown.items():
            raise ValueError("those in the round are not the clients that it knows")
        if survived - told.shown.keys() or identity.public not in survived:
            raise ValueError("those who survived are not in the round, or it is not among them")
        if not terms.neighbours and (told.shown.keys() - self.shown.keys() or survived - sharing):
            raise ValueError("a client of the round shares no mask with it, and secure.neighbours is 0")
        if len(survived) < terms.fewest:
            raise ValueError(f"{len(survived)} clients are left, {terms.fewest} needed")
        going_on = replace(self, phase=SIGNED, shown=told.shown, survived=told.survived)
        return going_on, signature_of(identity.signer, *going_on._seen(run_id))

    def unmask(
        self, told: SecureUnmask, terms: SecureTerms, run_id: int, identity: Identity | None
    ) -> dict[int, bytes]:
        """Return the shares that are asked for, by the place of their owner; afterwards the session is over.

        Raises
        ------
        ValueError
            If both secrets of somebody are asked for, too few survived, or too few clients saw the same survive.
        """
        self.check(told.server_round, MASKED if identity is None else SIGNED)
        survived, dropped = set(told.survived), set(told.dropped)
        if survived & dropped or self.place not in survived or (survived | dropped) - self.held.keys():
            raise ValueError("it is asked for both secrets of a client, or for one that it has no share of")
        if len(survived) < (needed := max(terms.fewest, terms.needed(self.holders))):
            raise ValueError(f"{len(survived)} clients that share masks are left, {needed} needed")
        if identity is not None:
            self._check_seen(told, terms, run_id)
        self_masks = {n: self.held[n][SEED_BYTES:] for n in told.survived}
        return self_masks | {n: self.held[n][:SEED_BYTES] for n in told.dropped}

    def check(self, server_round: int, phase: str) -> None:
        """Raise ValueError unless this is the round, and the last step was another one."""
        if (self.server_round, self.phase) != (server_round, phase):
            raise ValueError(
                f"secure aggregation is at {self.phase!r} of edge round {self.server_round}, "
                f"not at {phase!r} of {server_round}"
            )

    def _check_seen(self, told: SecureUnmask, terms: SecureTerms, run_id: int) -> None:
        """Raise ValueError unless as many in the round as find a secret signed what this client did."""
        parts = self._seen(run_id)
        agreeing = [n for n in told.signed.keys() & set(self.survived) if is_signed(n, told.signed[n], *parts)]
        if len(agreeing) < (needed := max(terms.fewest, terms.needed(len(self.shown)))):
            raise ValueError(f"{len(agreeing)} clients saw the same clients drop out, {needed} needed")
        for place, keys in self.peers.items():
            if (keys.signer in self.survived) != (place in told.survived):
                raise ValueError("others survived than it has signed")

    def _seen(self, run_id: int) -> tuple[object, ...]:
        """Return what is signed. The commitments are of this round alone: no signature is good for a repeated one."""
        shown = [part for pair in self.shown.items() for part in pair]
        return PURPOSE_SEEN, run_id, self.server_round, len(shown), len(self.survived), *shown, *self.survived

    def _channel(self, peer: PublicKeys, sender: int, receiver: int) -> bytes:
        """Return the key of the one share that goes from a client to another."""
        return agreed(self.channel_seed, peer.channel, PURPOSE_SHARE, self.server_round, sender, receiver)

    def to_config(self) -> dict[str, Any]:
        """Return it as the keys of a config record."""
        peers = list(self.peers.values())
        return {
            "server-round": self.server_round,
            "phase": self.phase,
            "mask-seed": self.mask_seed,
            "self-seed": self.self_seed,
            "channel-seed": self.channel_seed,
            "place": self.place,
            "peers": list(self.peers),
            "peer-keys": [b"".join((own.mask, own.channel, own.commitment, own.signer)) for own in peers],
            "held-of": list(self.held),
            "held": list(self.held.values()),
            "holders": self.holders,
            "clients": self.clients,
            "most-weight": self.most_weight,
            "instruction": self.instruction,
            "shown-by": list(self.shown),
            "shown": list(self.shown.values()),
            "survived": list(self.survived),
        }

    @classmethod
    def from_config(cls, kept: Mapping[str, Any]) -> Self:
        """Read what `to_config` wrote."""
        peers = dict(zip(kept["peers"], map(_keys_of, kept["peer-keys"]), strict=True))
        return cls(
            kept["server-round"],
            kept["phase"],
            kept["mask-seed"],
            kept["self-seed"],
            kept["channel-seed"],
            kept["place"],
            peers,
            dict(zip(kept["held-of"], kept["held"], strict=True)),
            kept["holders"],
            kept["clients"],
            kept["most-weight"],
            kept["instruction"],
            dict(zip(kept["shown-by"], kept["shown"], strict=True)),
            tuple(kept["survived"]),
        )


def _under_keys(run_id: int, server_round: int, keys: PublicKeys) -> Sequence[object]:
    return PURPOSE_KEYS, run_id, server_round, keys.mask, keys.channel, keys.commitment


def _check_signed(told: SecureShares, run_id: int, identity: Identity) -> None:
    """Raise ValueError unless every peer is a client that is known, and none is there twice."""
    peers = told.peers.values()
    signers = {keys.signer for keys in peers}
    if len(signers) < len(told.peers) or identity.public in signers or not signers <= identity.known:
        raise ValueError("a client that shares masks with it is none that it knows, or is there twice")
    if not all(is_signed(keys.signer, keys.signature, *_under_keys(run_id, told.server_round, keys)) for keys in peers):
        raise ValueError("a client that shares masks with it has not signed its keys")


def _keys_of(text: bytes) -> PublicKeys:
    return PublicKeys(*(text[i : i + KEY_BYTES] for i in range(0, len(text), KEY_BYTES)))
