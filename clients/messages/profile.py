"""What a node says of itself, so that a server can group nodes without knowing their random ids."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from flwr.app import ConfigRecord, RecordDict

from ..shared.records import config_in, records_in, without_empty
from ..shared.text import LONGEST_NAME, is_name, one_line, quoted
from .frames import StreamTicket
from .instruction import Instruction
from .train import CONFIG

QUERY_PROFILE: Final = "query.profile"
PROFILE: Final = "profile"
MEASURE: Final = "measure"

PARTITION_ID: Final = "partition-id"
EDGE_NAME: Final = "edge-name"
NUM_TRAIN_EXAMPLES: Final = "num-train-examples"
NUM_TEST_EXAMPLES: Final = "num-test-examples"
CLASS_COUNTS: Final = "class-counts"

MOST_CLASSES: Final = 100_000


@dataclass(frozen=True)
class DeviceProfile:
    """What a device measured of itself, and the limits that its node's config sets. 0 is unknown.

    Its fields are keys of the record, and some of a node's config, with dashes: ``cpu-count``, ...

    Parameters
    ----------
    cpu_count : int
        Processors that it may use.
    min_frequency_hz, max_frequency_hz : float
        Limits of the processors' frequency; the same where nobody sets it as a plan says.
    memory_bytes : int
        Size of its memory.
    cycles_per_example : float
        CPU cycles to train the whole model on one example.
    link_bits_per_second : float
        Rate of its uplink.
    energy_budget_joules : float
        What it may spend in an edge round; infinite is no limit.
    max_power_watts : float
        What it may transmit with.
    capacitance : float
        zeta: computing takes ``capacitance / 2 * frequency_hz**2`` joules a cycle.
    """

    cpu_count: int
    min_frequency_hz: float
    max_frequency_hz: float
    memory_bytes: int
    cycles_per_example: float
    link_bits_per_second: float
    energy_budget_joules: float
    max_power_watts: float
    capacitance: float

    def to_config(self) -> dict[str, int | float]:
        """Return the keys of the profile's record."""
        return {key_of(name): value for name, value in vars(self).items()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self | None:
        """Read what `to_config` wrote; None where the device has measured nothing."""
        if key_of("cycles_per_example") not in config:
            return None
        return cls(**{field.name: field.type(config[key_of(field.name)]) for field in fields(cls)})  # type: ignore[operator]


@dataclass(frozen=True)
class Profile:
    """What a node says of itself.

    Parameters
    ----------
    node_id : int
        Its id in this run, which does not travel.
    partition_id : int
        Its place among the clients; client order is the order of these.
    edge : str
        Name of the edge that the node's own config asks for, or an empty string.
    num_train_examples, num_test_examples : int
        Sizes of its data sets.
    class_counts : tuple[int, ...]
        Training examples per class.
    device : DeviceProfile, optional (default: None)
        What it measured of itself, where it was asked to.
    """

    node_id: int
    partition_id: int
    edge: str
    num_train_examples: int
    num_test_examples: int
    class_counts: tuple[int, ...]
    device: DeviceProfile | None = None

    def to_content(self) -> RecordDict:
        """Return the records."""
        config = {
            PARTITION_ID: self.partition_id,
            EDGE_NAME: self.edge,
            NUM_TRAIN_EXAMPLES: self.num_train_examples,
            NUM_TEST_EXAMPLES: self.num_test_examples,
            CLASS_COUNTS: list(self.class_counts),
            **(self.device.to_config() if self.device else {}),
        }
        return RecordDict({PROFILE: ConfigRecord(without_empty(config))})

    @classmethod
    def from_content(cls, node_id: int, content: RecordDict) -> Self:
        """Read the records that a node sent; ValueError if it is not a profile."""
        try:
            config: Mapping[str, Any] = records_in(content, ConfigRecord)[PROFILE]
            edge, counts = str(config.get(EDGE_NAME, "")), config.get(CLASS_COUNTS, [])
            if edge and not is_name(edge):
                raise ValueError(f"{EDGE_NAME} is {quoted(edge)}, expected {LONGEST_NAME} printable characters at most")
            if len(counts) > MOST_CLASSES:
                raise ValueError(f"{len(counts)} {CLASS_COUNTS}, expected {MOST_CLASSES} at most")
            return cls(
                node_id=node_id,
                partition_id=_number(config, PARTITION_ID, least=0),
                edge=edge,
                num_train_examples=_number(config, NUM_TRAIN_EXAMPLES, least=0),
                num_test_examples=_number(config, NUM_TEST_EXAMPLES, least=0),
                class_counts=tuple(map(int, counts)),
                device=DeviceProfile.from_config(config),
            )
        except Exception as error:  # all of this only reads foreign data, which can fail in any way
            raise ValueError(f"it can't be read ({type(error).__name__}: {one_line(str(error))})") from None


@dataclass(frozen=True)
class ProfileQuery(Instruction, message_type=QUERY_PROFILE):
    """Ask a node for its `Profile`.

    Parameters
    ----------
    measure : bool (default: False)
        It is to measure its device, too.
    ticket : StreamTicket, optional (default: None)
        For a stream by which it can measure its link.
    """

    measure: bool = False
    ticket: StreamTicket | None = None

    def to_content(self) -> RecordDict:
        """Return the records."""
        if not self.measure:
            return RecordDict()
        ticket = self.ticket.to_config() if self.ticket else {}
        return RecordDict({CONFIG: ConfigRecord({MEASURE: True, **ticket})})

    @classmethod
    def from_content(cls, content: RecordDict) -> Self:
        """Read the records."""
        config = config_in(content)
        return cls(bool(config.get(MEASURE, False)), StreamTicket.from_config(config))


def key_of(field: str) -> str:
    """Return the key of a field of `DeviceProfile`, in the record and in a node's config."""
    return field.replace("_", "-")


def _number(config: Mapping[str, Any], key: str, least: int) -> int:
    if not least <= (number := int(config[key])) < 2**63:
        raise ValueError(f"{key} is {quoted(number)}, expected a number >= {least} and < 2**63")
    return number
