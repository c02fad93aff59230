"""Training of whole models, evaluation, and the plan that an instruction may bring."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, MetricRecord, RecordDict

from ..shared.records import config_in, records_in
from .instruction import Instruction

TRAIN: Final = "train"
EVALUATE: Final = "evaluate"
TRAIN_ACCUMULATED: Final = "train.accumulated"

# Records.
ARRAYS: Final = "arrays"
CONFIG: Final = "config"
METRICS: Final = "metrics"
ACCUMULATED_GRADIENT: Final = "accumulated-gradient"
EDGE_HALF: Final = "edge-half"  # what the edge's half of an algorithm sends beside the model
CLIENT_HALF: Final = "client-half"  # what the client's half tells it

# Keys of the config record of an instruction; the first two are those of Flower's strategies.
SERVER_ROUND: Final = "server-round"
PROXIMAL_MU: Final = "proximal-mu"
LOCAL_ROUNDS: Final = "local-rounds"
CPU_FREQUENCY_HZ: Final = "cpu-frequency-hz"
TRANSMIT_POWER_WATTS: Final = "transmit-power-watts"
# As Flower's differential privacy strategies and mods have them; the third asks for the second.
CLIPPING_NORM: Final = "clipping_norm"
NORM_BIT: Final = "norm_bit"
WANTS_NORM_BIT: Final = "wants-norm-bit"

# Keys of the metric record of a reply. "train_loss" is the name that Flower's QFedAvg looks for.
NUM_EXAMPLES: Final = "num-examples"
TRAIN_LOSS: Final = "train_loss"
LOSS: Final = "loss"
ACCURACY: Final = "accuracy"
TOP: Final = "top-"  # and M: the share of examples whose label is among the M likeliest
VALIDATION: Final = "validation-"  # and a figure's name: it is of the examples held back from training
PERSONAL: Final = "personal-"  # and a figure's name: it is of the client's own model
NUM_VALIDATION: Final = "num-validation-examples"
TAKEN_NAMES: Final = (LOSS, NUM_EXAMPLES)
TAKEN_BEGINNINGS: Final = ("train_", "num-", TOP, VALIDATION, PERSONAL)


def is_own_figure(name: str) -> bool:
    """Return whether a figure of a task's own can have this name, which no other metric of a client has."""
    return name not in TAKEN_NAMES and not name.startswith(TAKEN_BEGINNINGS)


@dataclass(frozen=True)
class Train(Instruction, message_type=TRAIN, begins_round=True, ends_round=True):
    """Train the whole model. Flower's strategies write it, under names of their own for the records.

    Parameters
    ----------
    arrays : ArrayRecord
        The model to start from.
    server_round : int (default: 0)
        Selects the mini-batches.
    config : Mapping[str, ...] (default: none)
        What is sent along, such as a plan.
    sent : ArrayRecord, optional (default: None)
        What the edge's half of the algorithm sends beside the model.
    """

    arrays: ArrayRecord
    server_round: int = 0
    config: Mapping[str, ConfigRecordValues] = field(default_factory=dict)
    sent: ArrayRecord | None = None

    @property
    def proximal_mu(self) -> float:
        """The weight of FedProx's proximal term."""
        return proximal_mu(self.config)

    def to_content(self) -> RecordDict:
        """Return the records."""
        config = ConfigRecord({**self.config, SERVER_ROUND: self.server_round})
        beside = {} if self.sent is None else {EDGE_HALF: self.sent}
        return RecordDict({ARRAYS: self.arrays.copy(), CONFIG: config, **beside})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records; ValueError unless there is one ArrayRecord."""
        config = config_in(content)
        server_round: int = config.get(SERVER_ROUND, 0)  # type: ignore[assignment]
        return cls(only_arrays(content), int(server_round), config, records_in(content, ArrayRecord).get(EDGE_HALF))


@dataclass(frozen=True)
class TrainAccumulated(Train, message_type=TRAIN_ACCUMULATED, begins_round=True, ends_round=True):
    """Train the whole model, and send the sum of all steps' gradients (RawHFL)."""


@dataclass(frozen=True)
class Trained:
    """The reply to `Train`: the model, the mean loss over the examples seen, and what the edge's half is told."""

    arrays: ArrayRecord
    train_loss: float
    num_examples: int
    told: ArrayRecord | None = None

    def to_content(self) -> RecordDict:
        """Return the records."""
        beside = {} if self.told is None else {CLIENT_HALF: self.told}
        return RecordDict({ARRAYS: self.arrays, METRICS: _learned(self.train_loss, self.num_examples), **beside})


@dataclass(frozen=True)
class AccumulatedGradient:
    """The reply to `TrainAccumulated`: the sum of the gradients, and the mean loss over the examples that it saw."""

    gradient: ArrayRecord
    train_loss: float
    num_examples: int

    def to_content(self) -> RecordDict:
        """Return the records."""
        metrics = _learned(self.train_loss, self.num_examples)
        return RecordDict({ACCUMULATED_GRADIENT: self.gradient, METRICS: metrics})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records of a reply that has been screened."""
        (metrics,) = (record for record in content.values() if isinstance(record, MetricRecord))
        loss, count = float(metrics[TRAIN_LOSS]), int(metrics[NUM_EXAMPLES])  # type: ignore[arg-type]
        return cls(only_arrays(content), loss, count)


@dataclass(frozen=True)
class Evaluate(Instruction, message_type=EVALUATE):
    """Evaluate the whole model on the client's own test set; also written by Flower's strategies."""

    arrays: ArrayRecord

    def to_content(self) -> RecordDict:
        """Return the records."""
        return RecordDict({ARRAYS: self.arrays, CONFIG: ConfigRecord()})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records; ValueError unless there is one ArrayRecord."""
        return cls(only_arrays(content))


@dataclass(frozen=True)
class Evaluated:
    """The reply to `Evaluate`.

    Parameters
    ----------
    figures : Mapping[str, float]
        The loss, the accuracy and what else the task measures, by name.
    num_examples : int
        Examples of the test set.
    top : Mapping[int, float] (default: none)
        By M, the share of examples whose label is among the M likeliest.
    validation : Mapping[str, float] (default: none)
        Figures as `figures`, on the examples held back from training; none where none are held back in the run.
    num_validation : int (default: 0)
        Examples held back.
    """

    figures: Mapping[str, float]
    num_examples: int
    top: Mapping[int, float] = field(default_factory=dict)
    validation: Mapping[str, float] = field(default_factory=dict)
    num_validation: int = 0

    def to_content(self) -> RecordDict:
        """Return the records."""
        top = {f"{TOP}{m}": share for m, share in self.top.items()}
        held_back: dict[str, float] = {f"{VALIDATION}{name}": value for name, value in self.validation.items()}
        if held_back:
            held_back[NUM_VALIDATION] = self.num_validation
        return RecordDict(
            {METRICS: MetricRecord({**self.figures, NUM_EXAMPLES: self.num_examples, **top, **held_back})}
        )


@dataclass(frozen=True)
class ClientPlan:
    """How a client trains in a round, by the plan: told in the config record of what begins the round.

    Parameters
    ----------
    local_rounds : int
        Replaces the client's number of local epochs.
    cpu_frequency_hz, transmit_power_watts : float
        What it is to compute and to send with.
    """

    local_rounds: int
    cpu_frequency_hz: float
    transmit_power_watts: float

    def to_config(self) -> dict[str, ConfigRecordValues]:
        """Return the keys of the config record."""
        return {
            LOCAL_ROUNDS: self.local_rounds,
            CPU_FREQUENCY_HZ: self.cpu_frequency_hz,
            TRANSMIT_POWER_WATTS: self.transmit_power_watts,
        }


def only_arrays(content: RecordDict) -> ArrayRecord:
    """Return the model in a message, under whatever name; ValueError if it has none or several."""
    models = [r for name, r in content.items() if isinstance(r, ArrayRecord) and name != EDGE_HALF]
    if len(models) != 1:
        raise ValueError(f"it holds {len(models)} models, expected 1")
    return models[0]


def model_in_reply(content: RecordDict) -> tuple[str, ArrayRecord]:
    """Return the name and the model in a reply, beside what a client's half tells; ValueError unless there is one."""
    models = [(name, record) for name, record in records_in(content, ArrayRecord).items() if name != CLIENT_HALF]
    if len(models) != 1:
        raise ValueError(f"it sent {len(models)} models, expected 1")
    return models[0]


def proximal_mu(config: Mapping[str, Any]) -> float:
    """Return the weight of FedProx's proximal term, as a config record tells it; 0 where it does not."""
    return float(config.get(PROXIMAL_MU, 0.0))


def _learned(train_loss: float, num_examples: int) -> MetricRecord:
    return MetricRecord({TRAIN_LOSS: train_loss, NUM_EXAMPLES: num_examples})
