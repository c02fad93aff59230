"""Sessions of split training are kept from one message to the next, in other processes too."""

from typing import cast

from flwr.app import ArrayRecord, Context, MetricRecord

from ..memory import kept
from ..messages.split import Activations, SplitBegin, SplitStep, SplitTail
from ..messages.split_names import CUT, FROZEN_HEAD, STEP, TAIL
from ..messages.train import LOCAL_ROUNDS, PROXIMAL_MU, SERVER_ROUND, proximal_mu
from ..shared.arrays import count_of, record_of, to_weights
from ..shared.correction import Weights
from ..shared.cut import Cut, as_blocks
from ..shared.records import records_in
from ..task import ClientTask
from .session import Session, SessionTerms

# Records of a node's state.
STATE = "split"
TAIL_STATE = "split-tail"
BEGUN = "split-begun"
BEGUN_SENT = "split-begun-sent"
# Keys of the one that says where a session is.
AWAITS_FEATURES = "awaits-features"
LOSS_SUM = "loss-sum"


class Sessions:
    """Keeps sessions from one message to the next.

    Parameters
    ----------
    durable : bool (default: True)
        The next message may find another process: what a session needs is kept in the context's state too, and the
        forward pass is made again there. Not durable suits an engine that runs all messages in one process.
    """

    def __init__(self, durable: bool = True) -> None:
        self._durable = durable
        self._alive: dict[int, Session] = {}

    def note(self, context: Context, instruction: SplitBegin, task: ClientTask) -> None:
        """Keep what a round begins with, where the algorithm's rule goes by it in another process too."""
        if self._durable and (proximal_mu(instruction.config) or not task.half.is_plain):
            context.state[BEGUN] = instruction.block
            context.state[BEGUN_SENT] = instruction.sent or ArrayRecord()

    def put(self, context: Context, session: Session) -> Activations:
        """Keep a session, make the forward pass of its next mini-batch, and return what goes to the edge."""
        if self._durable:
            context.state[STATE] = session.front.snapshot()
            # Some of earlier rounds went on in other processes: their graphs would stay. Edges may be a round apart.
            self._alive = {n: s for n, s in self._alive.items() if s.server_round >= session.server_round - 1}
        activations = session.forward()
        self.keep(context, session)
        return activations

    def keep(self, context: Context, session: Session) -> None:
        """Keep a session whose mini-batch is on its way: its first blocks are kept as before the forward pass."""
        if self._durable:
            terms = session.terms
            at: dict[str, int | float | list[int] | list[float]] = {
                SERVER_ROUND: session.server_round,
                STEP: session.step,
                CUT: terms.cut.first,
                LOCAL_ROUNDS: terms.local_epochs,
                PROXIMAL_MU: terms.pull,
            }
            if session.tail is not None:
                context.state[TAIL_STATE] = session.tail.snapshot()
                at |= {TAIL: terms.cut.last, FROZEN_HEAD: int(terms.frozen_head)}
                at |= {AWAITS_FEATURES: int(session.awaits_features), LOSS_SUM: session.loss_sum}
            context.state[STATE + "-at"] = MetricRecord(at)
        self._alive[context.node_id] = session

    def pop(self, context: Context, task: ClientTask, instruction: SplitStep | SplitTail) -> Session:
        """Return the session that waits for what an instruction brings, and forget it.

        Raises
        ------
        ValueError
            If there is none: the message is of another round or another step.
        """
        brings_features = isinstance(instruction, SplitTail)
        due = server_round, step, _ = instruction.server_round, instruction.step, brings_features
        alive = self._alive.pop(context.node_id, None)
        session = alive if alive and (alive.server_round, alive.step, alive.awaits_features) == due else None
        if session:
            session.task = task  # whose model no other client works on at the same time
        if session and not self._durable:
            return session
        at = records_in(context.state, MetricRecord).get(STATE + "-at", MetricRecord())
        if self._durable and (at.get(SERVER_ROUND), at.get(STEP), bool(at.get(AWAITS_FEATURES, 0))) == due:
            return session or _restored(context, task, at, instruction.label_policy)
        what = "features" if brings_features else "a cut gradient"
        raise ValueError(f"no mini-batch of round {server_round}, step {step} waits for {what}")

    def drop(self, context: Context) -> None:
        """Forget the node's session, its state too."""
        self._alive.pop(context.node_id, None)
        for name in (STATE, TAIL_STATE, STATE + "-at", BEGUN, BEGUN_SENT):
            context.state.pop(name, None)


def _restored(context: Context, task: ClientTask, at: MetricRecord, label_policy: str) -> Session:
    """Return the session that a node's state holds."""
    last = count_of(at, TAIL) if TAIL in at else len(as_blocks(task.model))
    terms = SessionTerms(
        cut=Cut(count_of(at, CUT), last),
        server_round=count_of(at, SERVER_ROUND),
        label_policy=label_policy,
        local_epochs=count_of(at, LOCAL_ROUNDS),
        frozen_head=bool(at.get(FROZEN_HEAD, 0)),
        pull=proximal_mu(at),
    )
    session, awaits_features = Session(task, terms), bool(at.get(AWAITS_FEATURES, 0))
    session.follow(*_begun(context, session), kept(context))
    tail = record_of(context.state, TAIL_STATE) if session.tail else None
    session.restore(record_of(context.state, STATE), tail, count_of(at, STEP), awaits_features=awaits_features)
    session.loss_sum = cast(float, at.get(LOSS_SUM, 0.0))
    return session


def _begun(context: Context, session: Session) -> tuple[Weights, Weights]:
    """Return what the session's round began with, see `Sessions.note`; no plain rule without a pull asks for it."""
    if session.task.half.is_plain and not session.terms.pull:
        return {name: weight.detach() for part in session.parts for name, weight in part.trained.items()}, {}
    return to_weights(record_of(context.state, BEGUN)), to_weights(record_of(context.state, BEGUN_SENT))
