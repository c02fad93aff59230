"""What a client answers in secure aggregation, and what its replies hold in the place of its model."""

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from ..half import Handler
from ..memory import SECURE_SESSION, start_of_round
from ..messages.instruction import begins_round, ends_round
from ..messages.learned import learned_in
from ..messages.secure import (
    SECURE_KEYS,
    SECURE_SEEN,
    SECURE_SHARES,
    SECURE_UNMASK,
    MaskedReply,
    SecureKeys,
    SecureOpening,
    SecureSeen,
    SecureShares,
    SecureUnmask,
    Seen,
    Unmasking,
    digest_of,
)
from ..messages.split_names import (
    EVALUATE_FRONT,
    EVALUATE_OUTPUTS,
    QUERY_LABELS,
    SPLIT_BEGIN,
    SPLIT_FEATURES,
    SPLIT_FUSED,
    SPLIT_HEAD,
    SPLIT_LOCAL,
    SPLIT_STREAM,
)
from ..messages.train import CLIENT_HALF, NUM_EXAMPLES, TRAIN, TRAIN_LOSS
from ..shared.arrays import to_weights
from ..shared.correction import Weights
from ..shared.privacy import clipped
from ..shared.secure.fixed_point import Form, Part
from ..shared.secure.terms import SecureTerms
from ..task import ClientTask
from .identity import Identity, identity_of
from .session import NO_SIGNERS, UNSIGNED, SecureSession


def refuse(message: Message, context: Context, task: ClientTask) -> Message:
    """Answer no message of split models: what it brought would show activations and labels of whole models' clients."""
    raise ValueError(f"{message.metadata.message_type}: its run trains whole models under secure aggregation")


# By message type, what clients answer whose algorithm cuts no model.
OF_WHOLE_MODELS: Mapping[str, Handler] = dict.fromkeys(
    (
        QUERY_LABELS,
        SPLIT_BEGIN,
        SPLIT_STREAM,
        SPLIT_FUSED,
        SPLIT_LOCAL,
        SPLIT_FEATURES,
        SPLIT_HEAD,
        EVALUATE_FRONT,
        EVALUATE_OUTPUTS,
    ),
    refuse,
)


@dataclass(frozen=True)
class SecureClient:
    """A client whose updates nobody sees: the edge gets them under masks that cancel in the sum.

    Parameters
    ----------
    terms : SecureTerms
        What the client goes by, whatever an edge says.
    equal_weights : bool (default: False)
        It weighs 1. False: as many as it has examples.
    update_norm : float (default: 0.0)
        The longest update that it sends; a longer one is shortened. 0: any.
    """

    terms: SecureTerms
    equal_weights: bool = False
    update_norm: float = 0.0

    @property
    def handlers(self) -> dict[str, Handler]:
        """What answers the messages of secure aggregation, by message type."""
        return {
            SECURE_KEYS: self.show_keys,
            SECURE_SHARES: self.share,
            SECURE_SEEN: self.sign_seen,
            SECURE_UNMASK: self.unmask,
        }

    def show_keys(self, message: Message, context: Context, task: ClientTask) -> Message:
        """Answer ``train.secure_keys``: forget the round before, and make new keys."""
        session = SecureSession(SecureKeys.from_content(message.content).server_round)
        keys = session.keys(context.run_id, self._identity(context))
        _keep(context, session)
        return Message(keys.to_content(), reply_to=message)

    def share(self, message: Message, context: Context, task: ClientTask) -> Message:
        """Answer ``train.secure_shares``: share the secrets with peers."""
        told = SecureShares.from_content(message.content)
        session, shares = _session(context).share(told, self.terms, context.run_id, self._identity(context))
        _keep(context, session)
        return Message(shares.to_content(), reply_to=message)

    def sign_seen(self, message: Message, context: Context, task: ClientTask) -> Message:
        """Answer ``train.secure_seen``: sign who survived."""
        if (identity := self._identity(context)) is None:
            raise ValueError("it signs nothing: secure.signed is false")
        told = SecureSeen.from_content(message.content)
        session, signature = _session(context).sign(told, self.terms, context.run_id, identity)
        _keep(context, session)
        return Message(Seen(signature).to_content(), reply_to=message)

    def unmask(self, message: Message, context: Context, task: ClientTask) -> Message:
        """Answer ``train.secure_unmask``, once: bring the shares that take masks off the sum."""
        told, session = SecureUnmask.from_content(message.content), _session(context)
        shares = session.unmask(told, self.terms, context.run_id, self._identity(context))
        _forget(context)
        return Message(Unmasking(shares).to_content(), reply_to=message)

    def __call__(self, reply: Message, message: Message, context: Context, task: ClientTask) -> Message:
        """Return the reply as it travels: with masked numbers in the place of what is learned.

        Raises
        ------
        ValueError
            If the edge has agreed on no masks for the round: no update leaves the client without.
        """
        kind = message.metadata.message_type
        if not (begins_round(kind) or ends_round(kind)) or reply.has_error():
            return reply
        if begins_round(kind):
            if (opening := SecureOpening.from_content(message.content)) is None:
                raise ValueError("its edge asks for an update without secure aggregation")
            instruction = digest_of(kind, message.content, self.terms.apart)
            _keep(context, _session(context).open(opening, self.terms, instruction))
        sent = start_of_round(message, context)
        if not ends_round(kind):
            return reply
        if sent is None:
            raise ValueError("no round has begun")
        session, found = _session(context), _Learned.of(reply.content)
        start = to_weights(sent)
        model = clipped(found.model, {name: start[name] for name in found.model}, self.update_norm)
        told, without = tuple(found.told), tuple(name for name in start if name not in model)
        weight = 1 if self.equal_weights else found.num_examples
        part = Part(model, weight, found.loss, found.told)
        session, masked = session.mask(part, Form(start, told, without), self.terms)
        _keep(context, session)
        made = MaskedReply(masked, told, without, found.loss is not None).to_records()
        reply.content = RecordDict({**found.left(whole=kind == TRAIN), **made})
        return reply

    def _identity(self, context: Context) -> Identity | None:
        identity = identity_of(context.node_config)
        if (identity is not None) != self.terms.signed:
            raise ValueError(NO_SIGNERS if identity is None else UNSIGNED)
        return identity


@dataclass(frozen=True)
class _Learned:
    """What a reply holds that is to be masked, and the rest."""

    content: RecordDict
    name: str
    model: Weights
    told: Weights
    metrics: tuple[str, MetricRecord]

    @classmethod
    def of(cls, content: RecordDict) -> "_Learned":
        """Find it in a reply to an instruction to train."""
        name, model = learned_in(content)
        told = content.array_records.get(CLIENT_HALF, ArrayRecord())
        (metrics,) = content.metric_records.items()
        return cls(content, name, to_weights(model), to_weights(told), metrics)

    @property
    def num_examples(self) -> int:
        """How many examples the client has."""
        return int(self.metrics[1][NUM_EXAMPLES])  # type: ignore[arg-type]

    @property
    def loss(self) -> float | None:
        """The training loss, where it tells one."""
        return self.metrics[1].get(TRAIN_LOSS)  # type: ignore[return-value]

    def left(self, *, whole: bool) -> dict[str, ArrayRecord | ConfigRecord | MetricRecord]:
        """Return the records that stay: in split training the edge knows the number of examples anyway."""
        name, metrics = self.metrics
        rest = {n: record for n, record in self.content.items() if n not in (self.name, CLIENT_HALF, name)}
        kept = {} if whole else {name: MetricRecord({k: v for k, v in metrics.items() if k != TRAIN_LOSS})}
        return {**rest, **kept}


def _session(context: Context) -> SecureSession:
    kept = context.state.config_records.get(SECURE_SESSION)
    if kept is None:
        raise ValueError("it has no keys of this edge round")
    known: Mapping[str, object] = kept
    return SecureSession.from_config(known)


def _keep(context: Context, session: SecureSession) -> None:
    context.state[SECURE_SESSION] = ConfigRecord(session.to_config())


def _forget(context: Context) -> None:
    context.state.pop(SECURE_SESSION, None)
