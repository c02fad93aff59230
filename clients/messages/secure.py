"""Secure aggregation: what an edge and its clients exchange before and after a round's training.

Clients are called by their places in the round's list, from 0: no client learns of others which nodes they are.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Self

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from ..shared.arrays import config_of, record_of, values_of
from ..shared.records import without_empty
from ..shared.secure.keys import KEY_BYTES
from ..shared.secure.masks import Masked
from ..shared.tensor_array import record_by_reference
from .instruction import Instruction
from .split_names import CLIENT_BLOCK
from .train import SERVER_ROUND, TRAIN, TRAIN_ACCUMULATED

SECURE_KEYS: Final = "train.secure_keys"
SECURE_SHARES: Final = "train.secure_shares"
SECURE_SEEN: Final = "train.secure_seen"
SECURE_UNMASK: Final = "train.secure_unmask"

SECURE: Final = "secure"  # a config record of all of these, and of the instruction that begins a client's training
MASKED: Final = "masked"  # a record of arrays of the reply that ends it

# Keys.
PLACE, PEERS, CLIENTS, MOST_WEIGHT = "place", "peers", "clients", "most-weight"
MASK_KEYS, CHANNEL_KEYS, COMMITMENT = "mask-keys", "channel-keys", "commitment"
SIGNERS, SIGNATURES = "signers", "signatures"
SEALED, SHARES, SURVIVED, DROPPED = "sealed", "shares", "survived", "dropped-out"
TOLD, WITHOUT, HAS_LOSS = "told", "without", "has-loss"
VALUES, EXACT = "values", "exact"

MOST_SEALED_BYTES: Final = 256
SIGNATURE_BYTES: Final = 64


@dataclass(frozen=True)
class PublicKeys:
    """What a client shows of its keys of one edge round; the reply to `SecureKeys`.

    Parameters
    ----------
    mask, channel : bytes
        Public keys (X25519): for masks, and for sealed shares.
    commitment : bytes
        To the seed of its self-mask.
    signer, signature : bytes (default: none)
        Its known public key (Ed25519), and its signature under the others; empty where clients sign nothing.
    """

    mask: bytes
    channel: bytes
    commitment: bytes
    signer: bytes = b""
    signature: bytes = b""

    def to_content(self) -> RecordDict:
        """Return the records."""
        own = {MASK_KEYS: self.mask, CHANNEL_KEYS: self.channel, COMMITMENT: self.commitment}
        signed = {SIGNERS: self.signer, SIGNATURES: self.signature} if self.signer else {}
        return RecordDict({SECURE: ConfigRecord({**own, **signed})})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records that a client sent; ValueError for what are no keys."""
        config = config_of(content, SECURE)
        mask, channel, commitment = (_bytes_of(config, key, KEY_BYTES) for key in (MASK_KEYS, CHANNEL_KEYS, COMMITMENT))
        if SIGNERS not in config:
            return cls(mask, channel, commitment)
        signer, signature = _bytes_of(config, SIGNERS, KEY_BYTES), _bytes_of(config, SIGNATURES, SIGNATURE_BYTES)
        return cls(mask, channel, commitment, signer, signature)


@dataclass(frozen=True)
class SecureKeys(Instruction, message_type=SECURE_KEYS):
    """Make new keys for an edge round: the reply is `PublicKeys`."""

    server_round: int

    def to_content(self) -> RecordDict:
        """Return the records."""
        return RecordDict({SECURE: ConfigRecord({SERVER_ROUND: self.server_round})})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records."""
        return cls(_number(config_of(content, SECURE), SERVER_ROUND))


@dataclass(frozen=True)
class SecureShares(Instruction, message_type=SECURE_SHARES, goes_on=True):
    """Share secrets with peers: the reply is `SealedShares`, one for each of them.

    Parameters
    ----------
    server_round : int
        The edge round.
    place : int
        The client's own.
    peers : Mapping[int, PublicKeys]
        Keys by place; these and the client hold shares of its secrets.
    """

    server_round: int
    place: int
    peers: Mapping[int, PublicKeys]

    def to_content(self) -> RecordDict:
        """Return the records."""
        keys = list(self.peers.values())
        config: dict[str, Any] = {
            SERVER_ROUND: self.server_round,
            PLACE: self.place,
            PEERS: list(self.peers),
            MASK_KEYS: [own.mask for own in keys],
            CHANNEL_KEYS: [own.channel for own in keys],
            COMMITMENT: [own.commitment for own in keys],
        }
        if all(own.signer for own in keys):
            config |= {SIGNERS: [own.signer for own in keys], SIGNATURES: [own.signature for own in keys]}
        return RecordDict({SECURE: ConfigRecord(config)})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records; ValueError for what does not fit together."""
        config: Mapping[str, Any] = config_of(content, SECURE)
        peers = _places(config, PEERS)
        columns = [config[key] for key in (MASK_KEYS, CHANNEL_KEYS, COMMITMENT)]
        if SIGNERS in config:
            columns += [config[SIGNERS], config[SIGNATURES]]
        keys = [PublicKeys(*map(bytes, row)) for row in zip(*columns, strict=True)]
        return cls(_number(config, SERVER_ROUND), _number(config, PLACE), dict(zip(peers, keys, strict=True)))


@dataclass(frozen=True)
class SealedShares:
    """Shares by the place of those whom they are for, or from; each is a text that its holder alone can read."""

    sealed: Mapping[int, bytes]

    def to_config(self) -> dict[str, Any]:
        """Return the keys of a config record."""
        return {PEERS: list(self.sealed), SEALED: list(self.sealed.values())}

    def to_content(self) -> RecordDict:
        """Return the records."""
        return RecordDict({SECURE: ConfigRecord(self.to_config())})

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read what `to_config` wrote; ValueError for what does not fit together."""
        texts = config[SEALED]
        if not all(isinstance(text, bytes) and len(text) <= MOST_SEALED_BYTES for text in texts):
            raise ValueError("its shares are none")
        return cls(dict(zip(_places(config, PEERS), texts, strict=True)))

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records that a client sent; ValueError if it sent none."""
        return cls.from_config(config_of(content, SECURE))


@dataclass(frozen=True)
class SecureOpening:
    """What goes along with the instruction that begins a client's training.

    Parameters
    ----------
    server_round : int
        The edge round.
    clients : int
        At most so many are added up.
    most_weight : int
        The largest weight of one.
    shares : SealedShares
        Those that peers have sealed for the client: these peers' masks are part of its own.
    """

    server_round: int
    clients: int
    most_weight: int
    shares: SealedShares

    def to_record(self) -> ConfigRecord:
        """Return it as a record."""
        own = {SERVER_ROUND: self.server_round, CLIENTS: self.clients, MOST_WEIGHT: self.most_weight}
        return ConfigRecord({**own, **self.shares.to_config()})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self | None:
        """Read it in an instruction; None where it has none."""
        if SECURE not in content:
            return None
        config = config_of(content, SECURE)
        server_round, clients, most_weight = (_number(config, key) for key in (SERVER_ROUND, CLIENTS, MOST_WEIGHT))
        return cls(server_round, clients, most_weight, SealedShares.from_config(config))


def digest_of(message_type: str, instruction: RecordDict, without: Collection[str]) -> bytes:
    """Return a digest of what an instruction that begins a training tells all clients alike.

    That are the model, what is beside it, and how to train; in split training the blocks, since the rest differs
    between clients, by their labels, streams and heads.

    Parameters
    ----------
    message_type : str
        Its type. What trains whole models takes them under any name, so a name says nothing of it.
    instruction : RecordDict
        Its records.
    without : Collection[str]
        Names of others that differ between clients.
    """
    is_whole = message_type in (TRAIN, TRAIN_ACCUMULATED)
    digest = sha256(message_type.encode() if is_whole else b"")
    for name, record in sorted(instruction.items()):
        if name in (SECURE, *without) or not (is_whole or name == CLIENT_BLOCK):
            continue
        if isinstance(record, ArrayRecord):
            for key, array in sorted(record.items()):
                values = values_of(array)
                digest.update(repr((name, key, values.dtype.str, values.shape)).encode())
                digest.update(values.tobytes())
        else:
            digest.update(repr((name, sorted((key, str(value)) for key, value in record.items()))).encode())
    return digest.digest()


@dataclass(frozen=True)
class MaskedReply:
    """What a client's reply has in the place of its model, its loss and what it tells beside these.

    Parameters
    ----------
    masked : Masked
        Its part of the sum under all of its masks.
    told : tuple[str, ...]
        Names of what it tells beside the model.
    without : tuple[str, ...]
        Names of what it does not send back of the model that it got.
    has_loss : bool
        A loss is part of it.
    """

    masked: Masked
    told: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    has_loss: bool = True

    @property
    def form(self) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
        """What all of a sum must have alike."""
        return self.told, self.without, self.has_loss

    def to_records(self) -> dict[str, ArrayRecord | ConfigRecord]:
        """Return the records."""
        arrays = {VALUES: Array(self.masked.values), EXACT: Array(self.masked.exact)}
        config: dict[str, Any] = {TOLD: list(self.told), WITHOUT: list(self.without), HAS_LOSS: self.has_loss}
        return {MASKED: record_by_reference(arrays), SECURE: ConfigRecord(without_empty(config))}

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records that a client sent; ValueError if it sent no such thing."""
        arrays, config = record_of(content, MASKED), config_of(content, SECURE)
        values, exact = values_of(arrays[VALUES]), values_of(arrays[EXACT])
        if (values.dtype.str, values.ndim, exact.dtype.str, exact.ndim) != ("<u4", 1, "<u8", 1):
            raise ValueError("its masked numbers are of another form")
        told, without = (tuple(map(str, config.get(key, []))) for key in (TOLD, WITHOUT))  # type: ignore[arg-type]
        return cls(Masked(values, exact), told, without, bool(config.get(HAS_LOSS)))


@dataclass(frozen=True)
class SecureSeen(Instruction, message_type=SECURE_SEEN, goes_on=True):
    """Sign who was in the round, and whose masked numbers have come: the reply is `Seen`.

    Parameters
    ----------
    server_round : int
        The edge round.
    shown : Mapping[bytes, bytes]
        The commitments of all who have shown keys, by known key.
    survived : tuple[bytes, ...]
        Known keys.
    """

    server_round: int
    shown: Mapping[bytes, bytes]
    survived: tuple[bytes, ...]

    def to_content(self) -> RecordDict:
        """Return the records."""
        own: dict[str, Any] = {SIGNERS: list(self.shown), COMMITMENT: list(self.shown.values())}
        own[SURVIVED] = list(self.survived)
        return RecordDict({SECURE: ConfigRecord({SERVER_ROUND: self.server_round, **own})})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records."""
        config: Mapping[str, Any] = config_of(content, SECURE)
        shown = dict(zip(config[SIGNERS], config[COMMITMENT], strict=True))
        return cls(_number(config, SERVER_ROUND), shown, tuple(config[SURVIVED]))


@dataclass(frozen=True)
class Seen:
    """The reply to `SecureSeen`: a client's signature."""

    signature: bytes

    def to_content(self) -> RecordDict:
        """Return the records."""
        return RecordDict({SECURE: ConfigRecord({SIGNATURES: self.signature})})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records that a client sent; ValueError if it sent none."""
        return cls(_bytes_of(config_of(content, SECURE), SIGNATURES, SIGNATURE_BYTES))


@dataclass(frozen=True)
class SecureUnmask(Instruction, message_type=SECURE_UNMASK, goes_on=True):
    """Bring shares: of the self-masks of those who survived, of the mask keys of those who dropped out.

    Parameters
    ----------
    server_round : int
        The edge round.
    survived, dropped : tuple[int, ...]
        Places; all of whom the client holds a share of, itself too.
    signed : Mapping[bytes, bytes]
        Signatures under what was seen, by known key; none where nothing is signed.
    """

    server_round: int
    survived: tuple[int, ...]
    dropped: tuple[int, ...]
    signed: Mapping[bytes, bytes]

    def to_content(self) -> RecordDict:
        """Return the records."""
        own: dict[str, Any] = {SERVER_ROUND: self.server_round}
        own |= {SURVIVED: list(self.survived), DROPPED: list(self.dropped)}
        if self.signed:
            own |= {SIGNERS: list(self.signed), SIGNATURES: list(self.signed.values())}
        return RecordDict({SECURE: ConfigRecord(without_empty(own))})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records."""
        config: Mapping[str, Any] = config_of(content, SECURE)
        signed = dict(zip(config.get(SIGNERS, []), config.get(SIGNATURES, []), strict=True))
        survived, dropped = (tuple(_places(config, key)) for key in (SURVIVED, DROPPED))
        return cls(_number(config, SERVER_ROUND), survived, dropped, signed)


@dataclass(frozen=True)
class Unmasking:
    """The reply to `SecureUnmask`: a share for each of those asked for, by place."""

    shares: Mapping[int, bytes]

    def to_content(self) -> RecordDict:
        """Return the records."""
        return RecordDict({SECURE: ConfigRecord({PEERS: list(self.shares), SHARES: list(self.shares.values())})})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records that a client sent; ValueError for what are no shares."""
        config: Mapping[str, Any] = config_of(content, SECURE)
        shares = config[SHARES]
        if not all(isinstance(share, bytes) and len(share) == 16 for share in shares):
            raise ValueError("its shares are none")
        return cls(dict(zip(_places(config, PEERS), shares, strict=True)))


def _number(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{key} is {value!r}, expected a whole number")
    return value


def _places(config: Mapping[str, Any], key: str) -> list[int]:
    places = config.get(key, [])
    if len(set(places)) < len(places) or not all(isinstance(place, int) and place >= 0 for place in places):
        raise ValueError(f"{key} are no places of clients")
    return list(places)


def _bytes_of(config: Mapping[str, Any], key: str, length: int) -> bytes:
    value = config.get(key)
    if not isinstance(value, bytes) or len(value) != length:
        raise ValueError(f"{key} is not of {length} bytes")
    return value
