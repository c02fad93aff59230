"""FedBABU: bodies train for one random head, and each client fine-tunes a model at the end (arXiv:2106.06042)."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, Context, Message, RecordDict
from flwr.serverapp.strategy import Strategy

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.algorithms.fedper import head_names
from espalier.app.algorithms.strategies import edge_strategy
from espalier.app.ground.reasons import unused
from espalier.app.settings.section import Section
from espalier.clients.half import ClientHalf
from espalier.clients.memory import keep
from espalier.clients.messages.train import ARRAYS, CONFIG, EVALUATE, Evaluate
from espalier.clients.shared.arrays import to_weights
from espalier.clients.shared.local_round import Begun, Done, LocalRound, Pass
from espalier.clients.shared.records import records_in
from espalier.clients.task import ClientTask
from espalier.clients.whole.evaluation import evaluate, evaluated_state
from espalier.clients.whole.tuning import tuned_state
from espalier.strategies import AlgorithmEdge, MemberGrid
from espalier.strategies.exchange import Exchanges
from espalier.strategies.split import FineTuning, Personalised
from espalier.strategies.split.fine_tuning import metrics_by_node

TUNED = "tuned-model"  # record of a node's state, which never leaves it
STEPS, RATE, TUNES = "fine-tune.steps", "fine-tune.rate", "fedbabu.tunes"


class FedBabuSettings(Section):
    """Of FedBABU."""

    name = "fedbabu"

    tunes: Literal["head", "all"] = "head"
    """With [FedBABU](personal.md#fedbabu): what is fine-tuned after training; the authors' code tunes all of it."""

    def without_use(self, given: Mapping[str, Any]) -> Iterable[tuple[Iterable[str], str]]:
        """Return what would be fine-tuned, where nothing is."""
        return unused((not given["fine-tune.steps"], ("fedbabu.tunes",), "fine-tune.steps = 0"))


def fedbabu_round(begun: Begun) -> LocalRound:
    """Train the body for a head that stays as it was drawn (Alg. 1)."""
    learned = yield Pass(trains=[name for name in begun.trained if name not in begun.own])
    return Done(learned.weights)


def evaluate_tuned(message: Message, context: Context, task: ClientTask) -> Message:
    """Answer ``evaluate``; where it has steps of fine-tuning, evaluate what they make of the model."""
    asked = records_in(message.content, ConfigRecord).get(CONFIG, ConfigRecord())
    if STEPS not in asked:
        return evaluate(message, context, task)
    state = {**to_weights(Evaluate.from_content(message.content).arrays), **task.own}
    only = head_names(task.model) if asked[TUNES] == "head" else None
    own = tuned_state(task, state, int(asked[STEPS]), float(asked[RATE]), only)  # type: ignore[arg-type]
    keep(context, own, TUNED)
    return Message(evaluated_state(task, own, {}).to_content(), reply_to=message)


class FedBabuEdge(AlgorithmEdge):
    """An edge that averages bodies, and has its clients fine-tune what `tunes` says, "head" or "all"."""

    def __init__(self, strategy: Strategy, tunes: str, **options: Any) -> None:
        super().__init__(strategy, **options)
        self.tunes = tunes

    def personalise(self, arrays: ArrayRecord, fine_tuning: FineTuning, grid: MemberGrid) -> Exchanges[Personalised]:
        """Let every client fine-tune a model of its own, from a trained one, and evaluate it; it stays there."""
        config: dict[str, ConfigRecordValues] = {
            STEPS: fine_tuning.num_steps,
            RATE: fine_tuning.learning_rate,
            TUNES: self.tunes,
        }
        body = ArrayRecord({name: array for name, array in arrays.items() if name not in self.stays})
        messages = [
            Message(RecordDict({ARRAYS: body.copy(), CONFIG: ConfigRecord(config)}), node_id, EVALUATE)
            for node_id in grid.get_node_ids()
        ]
        metrics, failures = metrics_by_node(messages, (yield messages))
        return Personalised({}, metrics, failures)


FEDBABU_CLIENT = ClientHalf(rule=fedbabu_round, stays=head_names, handlers={EVALUATE: evaluate_tuned})


def fedbabu_edge(site: Site) -> FedBabuEdge:
    """Return ``edge-strategy`` over all of the model but the head."""
    assert isinstance(site.own, FedBabuSettings)
    stays = FEDBABU_CLIENT.stays(site.task.new_model())
    return FedBabuEdge(edge_strategy(site), site.own.tunes, stays=stays, name=site.federation.edge_strategy.name)


FEDBABU = Algorithm(
    name="fedbabu",
    summary="Bodies for one random head, which never trains; afterwards each client's head, or all, is fine-tuned.",
    make_edge=fedbabu_edge,
    tiers="one or two",
    strategy_key="edge-strategy",
    freezes_head=True,
    tunes=True,
    client=FEDBABU_CLIENT,
    section=FedBabuSettings,
)
