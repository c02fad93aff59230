"""The run config: parsed once, from whatever source, into a typed and validated object."""

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from flwr.serverapp.strategy import FedProx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from espalier.app.errors import UserError, bad_value
from espalier.app.strategy_spec import StrategySpec, parse_strategy
from espalier.strategies.allocation import SOLVERS

PATH_KEYS = ("data-dir", "cache-dir", "output-dir", "resume", "edge-folder", "stream-certificate", "stream-key")
Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]
VIDEO_CACHING = "video-caching"
OWN = "own"  # the partition where every client has a folder of its own
# RawHFL and the algorithms it is compared with: each edge round follows a plan over the simulated radio world.
PLANNED_ALGORITHMS = ("rawhfl", "h-fedavg-m1", "h-fedavg-m2", "h-fedavg-ub", "fedavg-ub")
FLAT_ALGORITHMS = ("fedavg", "centralised", "fedavg-ub", "top-popular")
# These are flat unless they are given more than one edge.
FLAT_BY_DEFAULT = ("sl", "sfl-v1", "sfl-v2")
SPLIT_ALGORITHMS = (*FLAT_BY_DEFAULT, "hsfl", "phsfl")
ONE_CUT_ALGORITHMS = ("sl", "sfl-v2")
BEST_CUT = "best"
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
# What simulated devices may be drawn from: lowest, highest, and what is shown to who writes it otherwise.
DEVICE_RANGES = {
    "cycles_per_bit": (1e-6, 1e9, "25-40"),
    "max_frequency_hz": (1.0, 1e12, "1.2e9-2e9"),
    "max_power_dbm": (-100.0, 100.0, "20-30"),
    "energy_budget_joules": (1e-9, 1e9, "0.8-1.5"),
}


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class RunConfig(BaseModel):
    """All settings of a run. Keys are written with hyphens: ``global-rounds = 10``.

    ``docs/configuration.md`` explains each key. The defaults are those of ``[tool.flwr.app.config]``.
    """

    model_config = ConfigDict(
        alias_generator=_kebab, populate_by_name=False, extra="forbid", frozen=True, strict=True, allow_inf_nan=False
    )

    # What is computed.
    algorithm: Literal[
        "fedavg",
        "h-fedavg",
        "sl",
        "sfl-v1",
        "sfl-v2",
        "hsfl",
        "phsfl",
        "rawhfl",
        "h-fedavg-m1",
        "h-fedavg-m2",
        "h-fedavg-ub",
        "fedavg-ub",
        "centralised",
        "top-popular",
    ] = "h-fedavg"
    cloud_strategy: str = "FedAvg"
    edge_strategy: str = "FedAvg"
    global_rounds: Positive = 10
    edge_rounds: Positive = 2
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    weighting: Literal["examples", "equal"] = "examples"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    # The federation.
    num_clients: Annotated[int, Field(gt=0, le=1_000_000)] = 8
    num_edges: NotNegative = 0
    role: Literal["server", "cloud", "edge"] = "server"
    edge_name: str = ""
    edge_folder: str = ""
    edge_clients: NotNegative = 0

    # Data and model.
    dataset: Literal["digits", "cifar10", "cifar100", "fashion-mnist", "image-folder", "video-caching"] = "digits"
    data_dir: str = ""
    cache_dir: str = ""
    image_size: Annotated[int, Field(ge=0, le=4096)] = 0
    classes: str = ""
    pixel_mean: str = ""
    pixel_std: str = ""
    partition: Literal["iid", "dirichlet", "shards", "own"] = "dirichlet"
    alpha: Annotated[float, Field(gt=0, le=1e6)] = 0.5
    shards_per_client: Positive = 2
    min_samples: Positive = 10
    model: Literal["auto", "small-cnn", "cnn", "resnet18", "resnet50"] = "auto"

    # Local training.
    local_epochs: Positive = 2
    batches_per_epoch: NotNegative = 0
    batch_size: Positive = 32
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: Annotated[float, Field(gt=0)] = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0

    # Split training.
    cut_layer: int | str = 1
    label_policy: Literal["indices", "labels"] = "indices"
    server_optimizer: Literal["sgd", "adam"] = "sgd"
    server_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    server_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    server_weight_decay: Annotated[float, Field(ge=0)] = 0.0
    server_order: Literal["interleaved", "one-by-one"] = "interleaved"
    split_transport: Literal["messages", "stream"] = "messages"
    stream_payload: Literal["float32", "float16", "int8"] = "float32"
    stream_address: str = "127.0.0.1"
    stream_port: Annotated[int, Field(ge=0, le=65535)] = 0
    stream_certificate: str = ""
    stream_key: str = ""
    stream_timeout: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    fine_tune_steps: NotNegative = 10
    fine_tune_rate: Annotated[float, Field(gt=0)] = 0.01

    # Resource awareness: whom a plan selects, and the limits that it keeps.
    selection: Literal["everybody", "resource-aware"] = "everybody"
    resources: Literal["simulated", "measured"] = "simulated"
    solver: str = "exact"
    selected_per_edge: Positive = 4
    max_overlap: Annotated[int, Field(ge=-1)] = -1
    max_local_rounds: Annotated[int, Field(gt=0, le=100_000)] = 50
    deadline_seconds: Annotated[float, Field(gt=0, le=1e9)] = 150.0
    theta: Annotated[float, Field(ge=0, le=1)] = 0.4
    min_frequency_hz: Annotated[float, Field(ge=0)] = 0.0
    downlink_bits_per_second: Annotated[float, Field(ge=0)] = 0.0

    # The simulated radio world.
    cell_radius_metres: Annotated[float, Field(gt=10, le=5000)] = 400.0
    fading: Literal["redrawn", "static"] = "redrawn"
    bandwidth_hz: Annotated[float, Field(ge=1, le=1e12)] = 540e3
    noise_figure_db: Annotated[float, Field(ge=0, le=60)] = 0.0
    planning_error_db: Annotated[float, Field(ge=0, le=60)] = 0.0
    cycles_per_bit: float | str = "25-40"
    max_frequency_hz: float | str = "1.2e9-2e9"
    max_power_dbm: float | str = "20-30"
    energy_budget_joules: float | str = "0.8-1.5"

    # Video caching.
    exploitation: float | str = "0.1-0.8"
    similar: Literal["most-similar", "most-similar-not-back"] = "most-similar"
    initial_slots: Annotated[int, Field(gt=0, le=1_000_000)] = 100
    slots_per_edge_round: Annotated[int, Field(ge=0, le=10_000)] = 4

    # How it runs.
    engine: Literal["flower", "in-process"] = "flower"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    torch_threads: Annotated[int, Field(gt=0, le=1024)] = 1
    evaluate_every: NotNegative = 1
    reply_timeout: NotNegative = 3600
    wait_for_nodes: NotNegative = 20
    output_dir: str = ""
    resume: str = ""

    @property
    def edges(self) -> int:
        """Number of edges; a flat algorithm has one group of clients, the cloud's own."""
        if self.algorithm in FLAT_ALGORITHMS:
            return 1
        return self.num_edges or (1 if self.algorithm in FLAT_BY_DEFAULT else 2)

    @property
    def is_flat(self) -> bool:
        """True for an algorithm without edges."""
        return self.algorithm in FLAT_ALGORITHMS or (self.algorithm in FLAT_BY_DEFAULT and self.edges == 1)

    @property
    def has_model(self) -> bool:
        """True for an algorithm that trains a model."""
        return self.algorithm != "top-popular"

    @property
    def is_planned(self) -> bool:
        """True where each edge round follows a plan that says who trains, and how hard."""
        return self.algorithm in PLANNED_ALGORITHMS or self.selection == "resource-aware"

    @property
    def cells(self) -> int:
        """Number of radio cells: one per edge; a flat algorithm's clients are in as many as two tiers would have."""
        return self.num_edges or (1 if self.algorithm in FLAT_BY_DEFAULT else 2)

    @property
    def exploitation_range(self) -> tuple[float, float]:
        """The range that clients' v_u are drawn from; both ends are equal for one number."""
        ends = _range(self.exploitation)
        if ends is None or not 0 <= ends[0] <= ends[1] <= 1:
            allowed = "a probability, or a range of them like '0.1-0.8'"
            raise bad_value("exploitation", self.exploitation, allowed)
        return ends

    @property
    def device_ranges(self) -> dict[str, tuple[float, float]]:
        """The ranges that the simulated devices are drawn from, by the names of `espalier.sim.devices.draw_devices`."""
        ranges = {}
        for name, (lowest, highest, example) in DEVICE_RANGES.items():
            given = getattr(self, name)
            ends = _range(given)
            if ends is None or not lowest <= ends[0] <= ends[1] <= highest:
                allowed = f"a number from {lowest:g} to {highest:g}, or a range of them like {example!r}"
                raise bad_value(_kebab(name), given, allowed)
            ranges[name] = ends
        return ranges

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names in `classes`, by label."""
        names = tuple(name.strip() for name in self.classes.split(","))
        # Folders with other names are nobody's classes: hidden ones are passed over.
        if len(set(names)) < len(names) or any(not name or name.startswith(".") or "/" in name for name in names):
            allowed = f"the names of the class folders, each once, like 'cat,dog', for partition = {OWN!r}"
            raise bad_value("classes", self.classes, allowed)
        return names

    @property
    def pixel_statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The numbers in `pixel-mean` and in `pixel-std`, by channel."""
        return _three_numbers("pixel-mean", self.pixel_mean, 0.0), _three_numbers("pixel-std", self.pixel_std, 1e-6)

    @property
    def is_split(self) -> bool:
        """True for an algorithm that cuts the model."""
        return self.algorithm in SPLIT_ALGORITHMS

    @property
    def cuts(self) -> tuple[int, ...]:
        """The cuts of `cut-layer`: client i has the i-th, from the start again after the last."""
        if self.cut_layer == BEST_CUT:
            return ()
        try:
            cuts = tuple(int(part) for part in str(self.cut_layer).split(","))
        except ValueError:
            allowed = "a number of blocks, a list of them for the clients in turn, like '1,2,4', or 'best'"
            raise bad_value("cut-layer", self.cut_layer, allowed) from None
        if self.algorithm in ONE_CUT_ALGORITHMS and len(set(cuts)) > 1:
            allowed = f"one cut for all clients where algorithm = {self.algorithm!r}: they share the server's block"
            raise bad_value("cut-layer", self.cut_layer, allowed)
        return cuts

    @property
    def cloud(self) -> StrategySpec:
        """The cloud strategy, parsed."""
        return parse_strategy("cloud-strategy", self.cloud_strategy)

    @property
    def edge(self) -> StrategySpec:
        """The edge strategy, parsed."""
        return parse_strategy("edge-strategy", self.edge_strategy)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings by key, as a user types them."""
        return self.model_dump(by_alias=True)


def _range(given: float | str) -> tuple[float, float] | None:
    """Return the ends of a range like ``"0.1-0.8"``, equal ones for a number; None for what is neither."""
    match = re.fullmatch(f"({NUMBER})(?:-({NUMBER}))?", str(given))
    return (float(match[1]), float(match[2] or match[1])) if match else None


def _three_numbers(key: str, text: str, least: float) -> tuple[float, ...]:
    """Return three numbers that are written like ``"0.5,0.5,0.5"``."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != 3 or not all(least <= number <= 1 for number in numbers):
        allowed = f"red, green and blue, each {least:g} to 1, like '0.5,0.5,0.5', for partition = {OWN!r}"
        raise bad_value(key, text, allowed)
    return numbers


KEYS = tuple(_kebab(name) for name in RunConfig.model_fields)
STRING_KEYS = tuple(_kebab(name) for name, field in RunConfig.model_fields.items() if field.annotation is str)


def parse_config(values: Mapping[str, Any]) -> RunConfig:
    """Return the validated config for `values`; keys that are not given take their defaults.

    Raises
    ------
    UserError
        For an unknown key, a value of the wrong type or out of range, or values that don't go together.
    """
    for key in values:
        if key not in KEYS:
            close = difflib.get_close_matches(key, KEYS, n=1)
            allowed = f"did you mean {close[0]!r}?" if close else f"allowed are {', '.join(KEYS)}"
            raise UserError(f"unknown key {key!r}: {allowed}")
    try:
        config = RunConfig.model_validate(dict(values))
    except ValidationError as error:
        first, *others = error.errors()
        # Where a key takes several types, each has an error of its own.
        messages = [first["msg"], *(other["msg"] for other in others if other["loc"][0] == first["loc"][0])]
        allowed = [
            message.removeprefix("Input should be ").replace("a valid integer", "an integer").replace("a valid ", "a ")
            for message in messages
        ]
        raise bad_value(str(first["loc"][0]), first["input"], " or ".join(allowed)) from None
    _check_together(config)
    return config


def _check_together(config: RunConfig) -> None:
    """Refuse values that are fine alone and impossible together."""
    for key in PATH_KEYS:
        try:
            Path(config.as_dict()[key]).expanduser()
        except RuntimeError:
            raise bad_value(key, config.as_dict()[key], "a path; there is no home folder of that user") from None
    for spec in (config.cloud, config.edge):
        if not spec.module:
            spec.check()
    resumed, output = (Path(folder).expanduser().absolute() for folder in (config.resume, config.output_dir))
    if config.resume and config.output_dir and output != resumed:
        allowed = f"'' or {config.resume!r}: a resumed run goes on in its folder"
        raise bad_value("output-dir", config.output_dir, allowed)
    _refuse_unused_strategies(config)
    _check_weighting(config)
    if config.is_split:
        _ = config.cuts
        if config.dataset == VIDEO_CACHING and config.label_policy == "indices":
            allowed = "'labels' for dataset = 'video-caching': labels that are not there yet can't be registered"
            raise bad_value("label-policy", "indices", allowed)
    chooses = config.is_split and config.algorithm not in ONE_CUT_ALGORITHMS and config.is_planned
    if config.cut_layer == BEST_CUT and not chooses:
        allowed = "numbers; with selection = 'resource-aware' the plans of sfl-v1, hsfl and phsfl choose"
        raise bad_value("cut-layer", BEST_CUT, allowed)
    if config.dataset == VIDEO_CACHING:
        _ = config.exploitation_range
        if config.model != "auto":
            raise bad_value(
                "model", config.model, "'auto' for dataset = 'video-caching', which has a network of its own"
            )
    elif config.algorithm == "top-popular":
        raise bad_value("algorithm", config.algorithm, "another one, or dataset = 'video-caching'")
    if config.algorithm in ("centralised", "top-popular") and config.selection != "everybody":
        raise bad_value("selection", config.selection, f"'everybody': {config.algorithm} trains no clients")
    if config.is_planned:
        _check_selection(config)
    if config.resources == "measured" and not config.is_planned:
        allowed = "'simulated', or selection = 'resource-aware', or an algorithm that plans, such as 'rawhfl'"
        raise bad_value("resources", config.resources, allowed)
    if config.edges > config.num_clients:
        raise bad_value("num-edges", config.edges, f"at most num-clients = {config.num_clients}")
    _check_role(config)
    if bool(config.stream_certificate) != bool(config.stream_key):
        given = "stream-key" if config.stream_key else "stream-certificate"
        raise bad_value(given, config.as_dict()[given], "both stream-certificate and stream-key, or neither")
    _check_own_folders(config)
    if config.dataset == "image-folder" and not config.data_dir:
        raise bad_value("data-dir", "", "a folder with train/<class>/* and test/<class>/* for dataset = 'image-folder'")


def check_strategies(config: RunConfig) -> None:
    """Refuse strategies that can't be made, or that would not do in this run what they are.

    It imports strategies of other packages, which clients need not have: servers call it, before anything else.

    Raises
    ------
    UserError
        For one that is not a strategy, or does not go with the algorithm or with `participation`.
    """
    has_cloud, has_edges = config.role != "edge", config.role != "cloud"
    for spec in [config.cloud] * has_cloud + [config.edge] * has_edges:
        spec.check()
    if has_cloud and config.is_split and issubclass(config.cloud.kind, FedProx):
        allowed = "another strategy: the proximal term is for clients that have the whole model"
        raise bad_value("cloud-strategy", config.cloud_strategy, allowed)
    samples = config.cloud if config.algorithm == "fedavg" else config.edge
    if has_edges and config.participation < 1 and not config.is_split and not samples.takes("fraction_train"):
        allowed = f"1.0: {samples.name} has no fraction_train"
        raise bad_value("participation", config.participation, allowed)


def _refuse_unused_strategies(config: RunConfig) -> None:
    """Refuse strategies that an algorithm has no use for; a flat one just has no edges."""
    given_edge = not config.is_flat and config.edge_strategy != "FedAvg"
    if config.algorithm in PLANNED_ALGORITHMS and given_edge:
        allowed = f"'FedAvg': the edges of {config.algorithm} add up gradients; other strategies go with h-fedavg"
        raise bad_value("edge-strategy", config.edge_strategy, allowed)
    if config.is_split and given_edge:
        allowed = f"'FedAvg': {config.algorithm} says how edges train; other strategies go with h-fedavg"
        raise bad_value("edge-strategy", config.edge_strategy, allowed)
    if config.is_flat and config.algorithm != "fedavg" and config.cloud_strategy != "FedAvg":
        edges = ", or num-edges = 2 or more" if config.is_split else ""
        allowed = f"'FedAvg': {config.algorithm} without edges has nothing for it to aggregate{edges}"
        raise bad_value("cloud-strategy", config.cloud_strategy, allowed)


def _check_weighting(config: RunConfig) -> None:
    """Refuse equal weights where they are so anyway, or where nothing is averaged."""
    if config.weighting == "examples":
        return
    why = ""
    if config.algorithm in PLANNED_ALGORITHMS:
        why = f"{config.algorithm} weighs all of its clients and edges equally by itself"
    elif config.algorithm in ("centralised", "top-popular") or (config.algorithm == "sl" and config.is_flat):
        why = f"{config.algorithm} averages no models" + ", unless num-edges = 2 or more" * config.is_split
    if why:
        raise bad_value("weighting", config.weighting, f"'examples': {why}")


def _check_own_folders(config: RunConfig) -> None:
    """Refuse what does not go together with folders of the clients' own, or is for them only."""
    if config.partition != OWN:
        for key in ("classes", "pixel-mean", "pixel-std"):
            if value := config.as_dict()[key]:
                raise bad_value(key, value, f"'' for partition = {config.partition!r}, whose data set says it itself")
        return
    if config.dataset != "image-folder":
        allowed = f"another one for dataset = {config.dataset!r}: clients' own folders are for 'image-folder'"
        raise bad_value("partition", OWN, allowed)
    if config.algorithm == "centralised":
        allowed = f"one that trains clients for partition = {OWN!r}: nobody has all the data"
        raise bad_value("algorithm", config.algorithm, allowed)
    if not config.image_size:
        raise bad_value("image-size", 0, f"1 or more for partition = {OWN!r}: all clients' images get one size")
    _ = config.class_names, config.pixel_statistics


def _check_role(config: RunConfig) -> None:
    """Refuse a role that its other settings do not suit."""
    if config.role != "edge":
        for key in ("edge-name", "edge-folder", "edge-clients"):
            if value := config.as_dict()[key]:
                raise bad_value(key, value, f"nothing for role = {config.role!r}: it is for role = 'edge'")
    if config.role == "server":
        return
    if config.is_flat or config.algorithm in FLAT_ALGORITHMS:
        raise bad_value("algorithm", config.algorithm, f"one with two tiers for role = {config.role!r}")
    if config.engine != "flower":
        allowed = f"'flower' for role = {config.role!r}: type: flwr run . --run-config 'role=\"{config.role}\" ...'"
        raise bad_value("engine", config.engine, allowed)
    if config.role == "edge":
        for key, allowed in (
            ("edge-name", "the name of this edge"),
            ("edge-folder", "a private folder that this run shares with the gateway"),
            ("edge-clients", "the number of this edge's clients"),
        ):
            if not config.as_dict()[key]:
                raise bad_value(key, config.as_dict()[key], f"{allowed} for role = 'edge'")
        if config.resume:
            raise bad_value("resume", config.resume, "'' for role = 'edge': the cloud's run is resumed")


def _check_selection(config: RunConfig) -> None:
    """Refuse what does not go together with plans, or with cells of this size."""
    if config.solver not in SOLVERS or config.solver in PLANNED_ALGORITHMS:
        names = [name for name in SOLVERS if name not in PLANNED_ALGORITHMS]
        raise bad_value("solver", config.solver, ", ".join(names))
    if config.participation != 1.0:
        raise bad_value("participation", config.participation, "1.0: plans select the clients (selected-per-edge)")
    if config.algorithm == "sl" or (config.algorithm == "sfl-v2" and config.server_order == "one-by-one"):
        raise bad_value("selection", config.selection, "'everybody' where clients train one after the other")
    if config.is_split and config.solver == "sca":
        raise bad_value("solver", "sca", "'exact' or 'random' for split training: its uploads grow with rounds")
    if config.is_split and len(set(config.cuts)) > 1:
        raise bad_value("cut-layer", config.cut_layer, "one cut, or 'best', with selection = 'resource-aware'")
    if config.dataset == VIDEO_CACHING and not config.batches_per_epoch:
        raise bad_value("batches-per-epoch", 0, "1 or more for plans on dataset = 'video-caching', whose data grow")
    if config.cells > config.num_clients:
        raise bad_value("num-edges", config.cells, f"at most num-clients = {config.num_clients}")
    check_cell_size(config, config.num_clients // config.cells)
    _check_devices(config)


def _check_devices(config: RunConfig) -> None:
    """Refuse simulated devices that can't be, and such where devices tell what they are."""
    if config.resources == "measured":
        for name in DEVICE_RANGES:
            if (given := getattr(config, name)) != (default := RunConfig.model_fields[name].default):
                allowed = f"{default!r} for resources = 'measured': devices say it, each in the config of its node"
                raise bad_value(_kebab(name), given, allowed)
        return
    lowest = config.device_ranges["max_frequency_hz"][0]
    if config.min_frequency_hz > lowest:
        allowed = f"0 to {lowest:g}, the least that max-frequency-hz = {config.max_frequency_hz!r} allows"
        raise bad_value("min-frequency-hz", config.min_frequency_hz, allowed)


def check_cell_size(config: RunConfig, smallest: int) -> None:
    """Refuse a number of clients to select, or an overlap, that a cell of this size can't have."""
    if config.algorithm in PLANNED_ALGORITHMS and config.algorithm != "rawhfl":
        return  # their rules don't select a number of clients
    z = config.selected_per_edge
    if z > smallest:
        raise bad_value("selected-per-edge", z, f"1 to {smallest}, the clients of the smallest cell")
    least = max(0, 2 * z - smallest)
    if 0 <= config.max_overlap < least:
        why = f"with {z} of {smallest} clients selected in every round"
        raise bad_value("max-overlap", config.max_overlap, f"at least {least} {why}, or -1 for half of them")


def read_arguments(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the values that a command line gives: ``KEY=VALUE`` and ``FILE.toml``, later ones win.

    A value is read as TOML (``global-rounds=5``, ``alpha=0.1``); what is not TOML is a plain string
    (``algorithm=h-fedavg``), and so is what is for a key that takes strings alone (``output-dir=2026``).

    Raises
    ------
    UserError
        If an argument is neither, or a file can't be read.
    """
    values: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if equals:
            value = _toml_value(text)
            values[key] = text if key in STRING_KEYS and not isinstance(value, str) else value
        elif argument.endswith(".toml"):
            values |= read_toml(Path(argument))
        else:
            raise UserError(f"argument {argument!r}: allowed is KEY=VALUE or a FILE.toml")
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """Return the keys and values of a TOML file; UserError if it can't be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{path}: can't be read ({error.strerror}); allowed is a TOML file of run-config keys"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is not TOML ({error})") from None


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
