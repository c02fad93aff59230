"""What is asked of a run: its sections, and what belongs to none of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.h_fedavg import H_FEDAVG
from espalier.app.algorithms.registry import algorithm_named
from espalier.app.ground.reasons import first_reason
from espalier.app.ground.strategy_spec import PLAIN_MEAN, StrategySpec
from espalier.app.planning.rule import PlanRule
from espalier.app.settings.engine_kinds import ENGINES, EngineKind, engine_named
from espalier.app.settings.here import HERE, Here
from espalier.app.settings.section import Section, Tag, is_section
from espalier.app.settings.sections import (
    Caching,
    Data,
    Deploy,
    Federation,
    FineTune,
    Guards,
    Plans,
    RadioWorld,
    RayWorkers,
    Report,
    Split,
    Stop,
    StreamSettings,
    TrainSettings,
)
from espalier.app.settings.transports import TRANSPORTS, TransportKind

Kind = TypeVar("Kind", bound=Section)


def _named(kind: type, find: Callable[[str], Any]) -> BeforeValidator:
    """Let a setting take values of a kind, and their names."""

    def value_of(given: Any) -> Any:
        if isinstance(given, kind):
            return given
        if not isinstance(given, str):
            raise ValueError("a string")
        return find(given)

    return BeforeValidator(value_of)


@dataclass(frozen=True)
class Decisions:
    """What follows from all settings together of how clients of one process train.

    Parameters
    ----------
    stack : int
        So many clients train side by side: ``stack``, and 0 where that has no effect.
    why_not_stacked : str
        Why they can't; nothing if they can.
    workers : int
        So many clients run at the same time, in threads: ``workers``, and 1 where that has no effect.
    why_in_turn : str
        Why they can't; nothing if they can.
    records : bool
        GPUs record gradients: ``train.cuda-graph``, and False where that has no effect.
    why_not_recorded : str
        Why they don't, whatever is asked for; nothing if they can.
    """

    stack: int
    why_not_stacked: str
    workers: int
    why_in_turn: str
    records: bool
    why_not_recorded: str


class Case(Section):
    """All settings of a run, and what follows from them; a feature's, or an algorithm's, are ``case[TheSection]``."""

    name = ""

    algorithm: Annotated[Algorithm, _named(Algorithm, algorithm_named), Tag.FIRST, Tag.SPEAKS] = H_FEDAVG
    """What is computed: one of the [algorithms](../README.md#run-it), or one of your own: `"package.module:NAME"`
    ([example](../examples/own-algorithm)).
    """
    seed: Annotated[int, Field(ge=0, lt=2**63), Tag.FIRST, Tag.BESIDE] = 0
    """Decides partition, initial weights, mini-batches and samples of clients."""
    engine: Annotated[EngineKind, _named(EngineKind, engine_named), Tag.OWN_AT_EDGES, Tag.HOW] = ENGINES["flower"]
    """`"flower"`: Flower's own runtime; `"in-process"`: all clients in the ServerApp's process; `"ray"`: in workers of
    its own, on all cores or on a cluster ([which engine when](scale.md)); or one of your own: `"package.module:NAME"`.
    Under `python -m app` the default is `"in-process"`, and `"flower"` is not allowed.
    """
    device: Annotated[Literal["auto", "cpu", "cuda"], Tag.OWN_AT_EDGES, Tag.MAY_CHANGE] = "auto"
    """`"cpu"`, `"cuda"`, or `"auto"`: a GPU where there is one."""
    stack: Annotated[int, Field(ge=0, le=4096), Tag.OWN_AT_EDGES, Tag.MAY_CHANGE] = 0
    """With `engine = "in-process"`, and in the edges of `engine = "ray"`: so many clients train side by side, as one
    batched computation; 0: one after the other. The results agree to rounding with those of `0`, and their bits
    depend on `stack`.
    """
    workers: Annotated[int, Field(ge=0, le=1024), Tag.OWN_AT_EDGES, Tag.HOW] = 0
    """With `engine = "in-process"`: so many clients run at the same time, in threads, with the bits of 1. 0: as many as
    there are cores, divided by `train.torch-threads`, or fewer where they would wait for each other.
    """
    output_dir: Annotated[str, Tag.PATH, Tag.OWN_AT_EDGES, Tag.HOW] = ""
    """The results folder. By default a new one in `./results` (`python -m app`) or `~/espalier-results` (`flwr run`).
    """
    resume: Annotated[str, Tag.PATH, Tag.OWN_AT_EDGES, Tag.HOW] = ""
    """Results folder of a run to go on with, see [resume](resume.md)."""

    federation: Federation = Federation()
    data: Data = Data()
    train: TrainSettings = TrainSettings()
    split: Split = Split()
    stream: StreamSettings = StreamSettings()
    fine_tune: FineTune = FineTune()
    plan: Plans = Plans()
    radio: RadioWorld = RadioWorld()
    caching: Caching = Caching()
    ray: RayWorkers = RayWorkers()
    guard: Guards = Guards()
    stop: Stop = Stop()
    deploy: Deploy = Deploy()
    report: Report = Report()
    features: Mapping[str, Section] = {}

    def __getitem__(self, kind: type[Kind]) -> Kind:
        """Return the section of a feature, or of an algorithm."""
        section = self.features[kind.name]
        assert isinstance(section, kind)
        return section

    @classmethod
    def keys(cls) -> Mapping[str, str]:
        """Return the key of every setting that is in no section."""
        return {field: key for field, key in super().keys().items() if field != "features"}

    @classmethod
    def sections(cls) -> dict[str, type[Section]]:
        """Return the sections by the names of their fields, or their own."""
        kinds: dict[str, Any] = {name: field.annotation for name, field in cls.model_fields.items()}
        return {name: kind for name, kind in kinds.items() if is_section(kind)}

    @property
    def held(self) -> list[Section]:
        """What it has of each section."""
        return [own for _, own in self if isinstance(own, Section)] + list(self.features.values())

    def as_dict(self) -> dict[str, Any]:
        """Return all settings by key, as a user types them."""
        values = super().as_dict()
        for section in self.held:
            values |= section.as_dict()
        return values

    @cached_property
    def decided(self) -> Decisions:
        """Who trains side by side, and whose gradients are recorded."""
        not_stacked = self._why_not_stacked()
        stack = 0 if not_stacked else self.stack
        not_recorded = self._why_not_recorded(stack)
        in_turn = self._why_in_turn(stack)
        workers = 1 if in_turn else self.workers
        return Decisions(stack, not_stacked, workers, in_turn, self.train.cuda_graph and not not_recorded, not_recorded)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other sections, for which all is decided anew."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("decided", None)
        return copied

    def _why_not_stacked(self) -> str:
        algorithm, split = self.algorithm, self.split
        fuses_no_steps = algorithm.splits and (
            algorithm.shares_server
            or algorithm.auxiliary
            or self.transport.opens_streams
            or split.execution == "messages"
            or not split.tail_layer.is_none
        )
        # Strategies are made only where it matters.
        pulls = self.stack and algorithm.splits and any(spec.proximal_mu for spec in self.strategies_here)
        corrects = algorithm.splits and not algorithm.client.is_plain
        return first_reason(
            (self.on_devices, f"engine = {self.engine.text!r} runs every client by itself"),
            (self.has_clients_in_workers, self.no_edge_in_a_worker),
            (fuses_no_steps, "side by side train whole models, and in SFL-V1, HSFL and PHSFL halves by fused steps"),
            (corrects, f"algorithm = {algorithm.text!r} corrects the steps of cut models, one client after the other"),
            (pulls, "FedProx pulls the steps of cut models, one client after the other"),
            (not algorithm.trains_clients, self.trains_no_clients),
            (self.train.precision == "bfloat16", "train.precision = 'bfloat16'"),
            (self.train.channels_last, "train.channels-last = true"),
        )

    def _why_in_turn(self, stack: int) -> str:
        return first_reason(
            (not self.engine.in_this_process, f"engine = {self.engine.text!r}"),
            (stack, f"stack = {stack}: clients train as one"),
            (self.trains_by_stream, "split.transport = 'stream': clients take turns in one process"),
            (not self.algorithm.trains_clients, self.trains_no_clients),
        )

    def _why_not_recorded(self, stack: int) -> str:
        return first_reason(
            (self.device == "cpu", "device = 'cpu'"),
            (not self.here.reaches_clients, f"deploy.role = {self.deploy.role!r} trains nobody"),
            (self.algorithm.splits, f"algorithm = {self.algorithm.text!r} trains no whole model"),
            (stack, f"stack = {stack}: clients train side by side"),
        )

    @property
    def trains_no_clients(self) -> str:
        """Why something has no use for clients, where an algorithm trains none."""
        return f"algorithm = {self.algorithm.text!r} trains no clients"

    @property
    def no_edge_in_a_worker(self) -> str:
        """Why single clients, not edges, are run by an engine's workers, where that is so."""
        engine = f"engine = {self.engine.text!r}"
        if self.is_flat:
            return f"algorithm = {self.algorithm.text!r} has no edges that {engine} could run as a whole"
        return f"where clients move, have edges by association, or are not waited for, {engine} runs no edge as a whole"

    @property
    def out_of_step(self) -> str:
        """Why edges, or clients, are in rounds of their own; nothing where a round is everybody's."""
        return ""

    @property
    def single_updates(self) -> str:
        """What needs the single updates of clients at their edge; nothing where averages are enough."""
        return ""

    @property
    def as_sent(self) -> str:
        """Why the models of edges have to arrive as they were sent; nothing where they need not."""
        return ""

    @property
    def has_whole_edges(self) -> bool:
        """True where an edge's clients are its own affair in a round, so that a worker can run it with them."""
        return not (self.is_flat or self.movers)

    @property
    def rule(self) -> PlanRule | None:
        """How the plans of edge rounds are made; None for a run without plans."""
        rule = self.algorithm.rule or (PlanRule() if self.plan.selection == "resource-aware" else None)
        return rule and rule.with_solver(self.plan.solver)

    @property
    def here(self) -> Here:
        """What of the run is on this host."""
        return HERE[self.deploy.role]

    @property
    def over_edges(self) -> StrategySpec:
        """The strategy over edges; over the one group of clients of an algorithm without, there is nothing to do."""
        return PLAIN_MEAN if self.is_flat else self.federation.cloud_strategy

    @property
    def links(self) -> dict[str, str]:
        """The tier of whoever asks, by the tier as its messages name it."""
        return {"edge": "cloud"} if self.is_flat else {"edge": "edge", "cloud": "cloud"}

    @property
    def over_clients(self) -> StrategySpec:
        """The strategy of the tier above the clients."""
        return self.federation.cloud_strategy if self.is_flat else self.federation.edge_strategy

    @property
    def answered(self) -> StrategySpec | None:
        """The strategy whose instructions clients answer; None where edges train them by themselves."""
        both = (self.federation.cloud_strategy, self.federation.edge_strategy)
        return {spec.key: spec for spec in both}.get(self.algorithm.strategy_key)

    @property
    def strategies_here(self) -> list[StrategySpec]:
        """The strategies that this process makes; those of other hosts need not be installed here."""
        both = (self.federation.cloud_strategy, self.federation.edge_strategy)
        return [spec for spec in both if spec.key in self.here.strategies]

    @property
    def on_devices(self) -> bool:
        """True where clients are nodes of Flower's runtime: they have configs of their own, and can be late."""
        return self.engine.is_flowers

    @property
    def reply_seconds(self) -> float | None:
        """How long replies of clients may take; None: as long as they do.

        Whoever waits for a worker of ours is not late: how long that takes depends on what else it has to do.
        """
        return (self.on_devices and self.deploy.reply_timeout) or None

    @property
    def num_clients_here(self) -> int:
        """How many clients have their data where this run's own processes can read them."""
        return 0 if self.on_devices else self.federation.num_clients

    @property
    def transport(self) -> TransportKind:
        """How mini-batches travel."""
        return TRANSPORTS[self.split.transport]

    @property
    def splits_by_stream(self) -> bool:
        """True where mini-batches travel in streams, to this host or to those of edges."""
        return self.transport.opens_streams and self.algorithm.splits

    @property
    def trains_by_stream(self) -> bool:
        """True where mini-batches travel in streams to this host."""
        return self.splits_by_stream and self.here.reaches_clients

    @property
    def trains_in_parts(self) -> bool:
        """True where mini-batches travel in parts, in streams to this host."""
        return self.trains_by_stream and self.stream.micro_batches > 1

    @property
    def devices_stay(self) -> bool:
        """True where Flower's nodes keep a stream to this host for the whole run."""
        return TRANSPORTS[self.deploy.transport].opens_streams and self.on_devices

    @property
    def num_nodes(self) -> int:
        """How many nodes this host reaches: its clients, or the gateways of edges."""
        by_role = {"edge": self.deploy.edge_clients, "cloud": self.edges}
        return by_role.get(self.deploy.role, self.federation.num_clients)

    @property
    def why_no_ledger(self) -> str:
        """Why what training takes can't be tried; nothing if it can."""
        return first_reason(
            (self.on_devices or not self.here.is_whole, "clients have processes of their own"),
            (self.rule, "rounds are planned, and each client's differ"),
            (not self.algorithm.trains_clients, self.trains_no_clients),
        )

    @property
    def trains_here(self) -> bool:
        """True where processes of this run train, not Flower's clients."""
        return not (self.on_devices and self.algorithm.trains_clients)

    @property
    def splits_for(self) -> str:
        """The algorithm that cuts the model; nothing where none does."""
        return self.algorithm.name if self.algorithm.splits else ""

    @property
    def measures(self) -> bool:
        """True where clients measure themselves, and their links to this host."""
        return self.plan.resources == "measured" and self.here.reaches_clients

    @property
    def of_algorithm(self) -> Section | None:
        """The algorithm's own settings."""
        kind = self.algorithm.section
        return None if kind is None else self.features.get(kind.name, kind())

    @property
    def is_flat(self) -> bool:
        """True where the clients are under the cloud."""
        return self.federation.num_edges <= self.algorithm.by_edges.most_flat

    @property
    def movers(self) -> dict[str, str]:
        """The keys by which clients move from one edge to another, each with the value without moves."""
        return {}

    @property
    def has_clients_in_workers(self) -> bool:
        """True where an engine's workers run clients, one by one; else they run edges with all of their clients."""
        return self.engine.has_workers and not self.has_whole_edges

    @property
    def edges(self) -> int:
        """Number of edges; without edges there is one group of clients, the cloud's own."""
        return self.num_edges or 1

    @property
    def num_edges(self) -> int:
        """Number of edges under the cloud; 0 without."""
        return 0 if self.is_flat else self.cells

    @property
    def edge_rounds(self) -> int:
        """Number of edge rounds of a global round; without edges it is one itself."""
        return 1 if self.is_flat else self.federation.edge_rounds

    def of_rounds(self, number: int) -> Self:
        """Return the same for a run of so many global rounds."""
        return self.model_copy(update={"federation": self.federation.model_copy(update={"global_rounds": number})})

    @property
    def edge_rounds_in_all(self) -> int:
        """Number of edge rounds of the whole run."""
        return self.federation.global_rounds * self.edge_rounds

    @property
    def cells(self) -> int:
        """Number of radio cells: one per edge; without edges as many as two tiers would have."""
        return self.federation.num_edges or self.algorithm.by_edges.left_open
