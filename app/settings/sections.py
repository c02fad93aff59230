"""The sections of the run config, by concern. Functions take the section that they need."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from espalier.app.ground.object_spec import ObjectSpec, parse_object
from espalier.app.ground.registered import parse_registered
from espalier.app.ground.strategy_spec import StrategySpec, parse_strategy
from espalier.app.settings.section import Section
from espalier.app.settings.values import (
    NO_TAIL,
    AugmentationSetting,
    Channels,
    ClassesSetting,
    Cuts,
    CutsSetting,
    EdgeNamesSetting,
    Range,
    StalenessSetting,
    StalenessWeight,
    Tail,
    TailSetting,
    Words,
    channels_from,
    numbers_within,
    range_within,
)

MOST = 10**9  # of whatever is counted, seconds too
LARGEST = 1e38  # a factor of numbers that are float32
Positive = Annotated[int, Field(gt=0, le=MOST)]
NotNegative = Annotated[int, Field(ge=0, le=MOST)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
Decay = Annotated[float, Field(ge=0, le=LARGEST)]
Rate = Annotated[float, Field(gt=0, le=LARGEST)]
VIDEO_CACHING = "video-caching"
AsClients = Literal["as-clients"]
AS_CLIENTS: AsClients = "as-clients"  # of the server's blocks: what the clients' optimizer has
OWN = "own"  # the partition where every client has a folder of its own


def _strategy(key: str, given: Any) -> StrategySpec:
    if isinstance(given, StrategySpec):
        return given
    if not isinstance(given, str):
        raise ValueError("a string")
    return parse_strategy(key, given)


def _task(given: Any) -> ObjectSpec:
    if isinstance(given, ObjectSpec):
        return given
    allowed = "'' for that of dataset, or package.module:NAME(argument=value, ...) of your own"
    if not isinstance(given, str):
        raise ValueError(allowed)
    try:
        module, name, parameters = parse_object(given) if given else ("", "", ())
    except ValueError:
        raise ValueError(allowed) from None
    if given and not module:
        raise ValueError(allowed)
    return ObjectSpec("task", given, module, name, parameters)


# The solvers that select a number of clients; others are rules of algorithms.
SOLVERS = ("exact", "sca", "random", "cheapest-at-full-power")
BUILT_IN_VALUES = ("uniform", "loss", "age", "battery")


def _function(key: str, built_in: Sequence[str], given: Any) -> ObjectSpec:
    """Return which of some functions is meant, or one of the user's own."""
    if isinstance(given, ObjectSpec):
        return given
    if given in built_in:
        return ObjectSpec(key, given, "", given, ())
    allowed = f"{', '.join(built_in)}, or package.module:function of your own"
    try:
        module, name, parameters = parse_object(given) if isinstance(given, str) else ("", "", ())
    except ValueError:
        raise ValueError(allowed) from None
    if not module:
        raise ValueError(allowed)
    return ObjectSpec(key, given, module, name, parameters)


_solver = partial(_function, "plan.solver", SOLVERS)
_value = partial(_function, "plan.value", BUILT_IN_VALUES)


def _bound(value: float) -> float:
    if 0 < value < 1:
        raise ValueError("0, for no bound of your own, or a number from 1 to 1e9")
    return value


Bound = Annotated[float, Field(ge=0, le=1e9), AfterValidator(_bound)]
SolverSetting = Annotated[ObjectSpec, BeforeValidator(_solver)]
ValueSetting = Annotated[ObjectSpec, BeforeValidator(_value)]
DatasetSetting = Annotated[ObjectSpec, BeforeValidator(partial(parse_registered, "dataset"))]
PartitionSetting = Annotated[ObjectSpec, BeforeValidator(partial(parse_registered, "partition"))]
ModelSetting = Annotated[ObjectSpec, BeforeValidator(partial(parse_registered, "model"))]
TaskSetting = Annotated[ObjectSpec, BeforeValidator(_task)]
CloudStrategy = Annotated[StrategySpec, BeforeValidator(partial(_strategy, "cloud-strategy"))]
EdgeStrategy = Annotated[StrategySpec, BeforeValidator(partial(_strategy, "edge-strategy"))]


class Federation(Section):
    """Who trains, in which tiers and rounds."""

    name = "federation"
    flat = (
        "num_clients",
        "num_edges",
        "edge_names",
        "global_rounds",
        "edge_rounds",
        "participation",
        "cloud_strategy",
        "edge_strategy",
    )

    num_clients: Annotated[int, Field(gt=0, le=1_000_000)] = 8
    """Clients; as many SuperNodes are needed."""
    num_edges: NotNegative = 0
    """Edges; 0 is what the algorithm has by itself: 2 with two tiers."""
    edge_names: EdgeNamesSetting = Words((), "")
    """The edges that a node, or an edge host, may name: "west,east"; "": any."""
    global_rounds: Positive = 10
    """Global rounds."""
    edge_rounds: Positive = 2
    """Edge rounds per global round (the papers' kappa_1)."""
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of an edge's clients that train in an edge round."""
    cloud_strategy: CloudStrategy = parse_strategy("cloud-strategy", "FedAvg")
    """Strategy of the cloud: NAME, NAME(parameter=value, ...) or package.module:NAME."""
    edge_strategy: EdgeStrategy = parse_strategy("edge-strategy", "FedAvg")
    """Strategy of every edge, likewise."""


class Data(Section):
    """Data and model."""

    name = "data"
    flat = ("task", "dataset", "data_dir", "partition", "alpha", "edge_alpha", "model")

    task: TaskSetting = _task("")
    """A task of your own, package.module:NAME(argument=value, ...); "" is that of dataset."""
    dataset: DatasetSetting = parse_registered("dataset", "digits")
    """digits, cifar10, cifar100, fashion-mnist, image-folder, video-caching, or package.module:function of your own."""
    data_dir: str = ""
    """Folder of the data."""
    partition: PartitionSetting = parse_registered("partition", "dirichlet")
    """How the data are shared out: dirichlet, edge-dirichlet, iid and others, own, or package.module:function."""
    alpha: Annotated[float, Field(gt=0, le=1e6)] = 0.5
    """Concentration of the Dirichlet partition; small is heterogeneous."""
    edge_alpha: Annotated[float, Field(gt=0, le=1e6)] = 0.5
    """Likewise over edges, with partition = "edge-dirichlet" and "iid-in-edges"."""
    model: ModelSetting = parse_registered("model", "auto")
    """small-cnn, cnn, resnet18, resnet50 or package.module:function; auto is small-cnn for digits, else cnn."""
    cache_dir: str = ""
    """Where decoded data are kept; by default ~/.cache/espalier."""
    image_size: Annotated[int, Field(ge=0, le=4096)] = 0
    """Resize the images of a folder to squares of so many pixels; 0 keeps their size."""
    augmentation: AugmentationSetting = Words((), "")
    """Random changes to images in training, one after the other: "crop,flip", vertical-flip, rotation."""
    classes: ClassesSetting = Words((), "")
    """With partition = "own": the names of the classes, "cat,dog"."""
    pixel_mean: Annotated[Channels, channels_from(0.0)] = Channels((), "")
    """With partition = "own": mean of each channel, of pixels from 0 to 1: "0.5,0.5,0.5"."""
    pixel_std: Annotated[Channels, channels_from(1e-6)] = Channels((), "")
    """With partition = "own": standard deviation of each channel."""
    shards_per_client: Positive = 2
    """With partition = "shards": shards of each client."""
    min_samples: Positive = 10
    """Training samples that every client has at least."""
    validation_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of each client's training samples to hold back, to find the best round by; 0: none."""

    @property
    def source(self) -> str:
        """The setting that says which task it is, for messages."""
        return f"task = {self.task.text!r}" if self.task.text else f"dataset = {self.dataset.text!r}"

    @property
    def title(self) -> str:
        """What reports call it."""
        return self.task.name or self.dataset.name


class Train(Section):
    """Local training."""

    name = "train"
    flat = ("local_epochs", "batches_per_epoch", "batch_size", "optimizer", "learning_rate")

    local_epochs: Positive = 2
    """Local epochs per edge round (kappa_0)."""
    batches_per_epoch: NotNegative = 0
    """Mini-batches per local epoch; 0 is the whole local set (10 for plans on data that grow)."""
    batch_size: Positive = 32
    """Examples of a mini-batch."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Fresh in every round."""
    learning_rate: Rate = 0.1
    """Learning rate."""
    momentum: Momentum = 0.0
    """Of SGD."""
    weight_decay: Decay = 0.0
    """Weight decay."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Of the learning rates, the server's too: cosine lets them fall from round to round, over all global rounds."""
    drop_last: bool = False
    """A pass over a client's data leaves out its last mini-batch if that is smaller than the others."""
    weighting: Literal["examples", "equal"] = "examples"
    """Weights of averages: training examples, or all clients of an edge alike and all edges."""
    torch_threads: Annotated[int, Field(gt=0, le=1024)] = 1
    """PyTorch threads per process; another number can change the last bits of a result."""
    cuda_graph: bool = False
    """On a GPU the gradients of whole models are recorded once, as a CUDA graph, and replayed: the same bits."""


class Split(Section):
    """Split training."""

    name = "split"
    flat = ("cut_layer", "tail_layer")

    cut_layer: CutsSetting = Cuts((1,), 1)
    """Number of blocks on a client; "1,2,4" gives the clients cuts in turn; "best" lets every plan choose."""
    tail_layer: TailSetting = Tail(NO_TAIL)
    """Block from which on all are the client's again, by name or number of blocks in front; labels stay there."""
    label_policy: Literal["auto", "indices", "labels"] = "auto"
    """indices: labels are registered at the edge once; labels: they travel; auto is labels where the data grow."""
    server_optimizer: Literal["sgd", "adam"] | AsClients = AS_CLIENTS
    """Of the server's blocks; as-clients takes optimizer."""
    server_learning_rate: Annotated[float, Field(ge=0, le=LARGEST)] = 0.0
    """Of the server's blocks; 0 takes learning-rate."""
    server_momentum: Momentum | AsClients = AS_CLIENTS
    """Of the server's SGD; as-clients takes train.momentum."""
    server_weight_decay: Decay | AsClients = AS_CLIENTS
    """Of the server's blocks; as-clients takes train.weight-decay."""
    server_order: Literal["interleaved", "one-by-one", "in-client-order"] = "interleaved"
    """SFL-V2: a mini-batch of each client in turn, or all of a client's before the next client's."""
    evaluate: Literal["split", "whole"] = "split"
    """split: activations come up and outputs go down; whole: every client gets the whole model."""
    transport: Literal["messages", "stream"] = "messages"
    """A Flower message per mini-batch, or one stream per round and client."""
    execution: Literal["fused", "messages"] = "fused"
    """Engines of our own: a client and an edge of one process train without messages, to the same bits, or with."""

    def beside(self, train: Train) -> "Split":
        """Return these settings where clients train so: the server's blocks too, unless they have their own."""
        left_open = {
            "server_optimizer": train.optimizer,
            "server_momentum": train.momentum,
            "server_weight_decay": train.weight_decay,
        }
        return self.model_copy(update={k: v for k, v in left_open.items() if getattr(self, k) == AS_CLIENTS})


class Stream(Section):
    """Streams from clients to their edge."""

    name = "stream"

    payload: Literal["float32", "float16", "bfloat16", "int8", "top-25%", "top-10%"] = "float32"
    """How activations and gradients travel in a stream."""
    address: str = "127.0.0.1"
    """Name or address under which clients reach the edge."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the stream; 0 takes a free one."""
    certificate: str = ""
    """PEM file of a certificate for stream.address; by default one is made for the run."""
    key: str = ""
    """PEM file of the certificate's private key."""
    timeout: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """Seconds that an edge waits for a client's next mini-batch."""


class FineTune(Section):
    """Heads of the clients' own, after training."""

    name = "fine-tune"

    steps: NotNegative = 10
    """SGD steps on each client's own head (the PHSFL paper's K); 0 leaves that out."""
    rate: Rate = 0.01
    """Their learning rate."""


class Plans(Section):
    """Resource awareness: whom a plan selects, and the limits that it keeps."""

    name = "plan"
    flat = ("selection",)

    selection: Literal["everybody", "resource-aware"] = "everybody"
    """Plans in front of the edges of an algorithm that has none by itself."""
    resources: Literal["simulated", "measured"] = "simulated"
    """Plans are made for the simulated radio world, or for what devices measure of themselves."""
    solver: SolverSetting = _solver("exact")
    """exact, sca (the paper's), random, cheapest-at-full-power, or package.module:function."""
    selected_per_edge: NotNegative = 0
    """Clients selected in each cell, Z; 0 is half of a cell's."""
    spare: NotNegative = 0
    """Clients selected in each cell beyond Z; an edge goes on with the first Z results."""
    max_overlap: Annotated[int, Field(ge=-1, le=MOST)] = -1
    """How many of them may be of the round before, Psi; -1 is half of them, or as many as it takes."""
    max_local_rounds: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Most local rounds, L (50 in the RawHFL paper); 0 is local-epochs."""
    deadline_seconds: Annotated[float, Field(gt=0, le=1e9)] = 150.0
    """Time to compute and upload in an edge round."""
    margin: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the deadline that plans leave unused."""
    late_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the results that may be late by radio.planning-error-db; 0 takes the gains as they are seen."""
    divide_by_arrived: bool = False
    """Gradients that arrive are divided by the share that arrived so far, 1/p_sc in RawHFL's eq. 15."""
    theta: Annotated[float, Field(ge=0, le=1)] = 0.4
    """Weight of local rounds against energy, from 0 to 1."""
    min_frequency_hz: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """Lowest CPU frequency that a plan may choose."""
    downlink_bits_per_second: Annotated[float, Field(ge=0, le=1e15)] = 0.0
    """Rate at which models and cut gradients come down; 0 ignores that time."""
    value: ValueSetting = _value("uniform")
    """What a client is worth besides its rounds and joules: uniform, loss, age, battery, or package.module:function."""
    value_weight: Annotated[float, Field(ge=0, le=1e9)] = 1.0
    """Weight of that value in the objective."""
    battery_joules: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """What each client may spend in the whole run; 0 is no limit."""

    @property
    def planned_seconds(self) -> float:
        """The part of the deadline that plans use."""
        return self.deadline_seconds * (1 - self.margin)

    @property
    def asked_per_cell(self) -> int:
        """Number of clients to select in each cell, the spare ones too; measured devices have none."""
        return self.selected_per_edge + (self.spare if self.resources == "simulated" else 0)


class RadioWorld(Section):
    """The simulated radio world, and the devices in it."""

    name = "radio"

    cell_radius_metres: Annotated[float, Field(gt=10, le=5000)] = 400.0
    """Radius of a cell."""
    fading: Literal["redrawn", "static"] = "redrawn"
    """Line of sight and shadowing: drawn anew in every edge round, or once."""
    bandwidth_hz: Annotated[float, Field(ge=1, le=1e12)] = 540e3
    """Of the radio resource (pRB) that each selected client has."""
    noise_figure_db: Annotated[float, Field(ge=0, le=60)] = 0.0
    """Of the base stations' receivers."""
    planning_error_db: Annotated[float, Field(ge=0, le=60)] = 0.0
    """Standard deviation of the channel gains that plans are made with from the true ones."""
    speed_metres_per_second: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Speed at which clients walk, each straight on; the nearest base station's edge is theirs."""
    cycles_per_bit: Annotated[Range, numbers_within(1e-6, 1e9, "25-40")] = Range(25, 40, "25-40")
    """CPU cycles per bit of training data: a number, or a range that devices draw theirs from."""
    max_frequency_hz: Annotated[Range, numbers_within(1.0, 1e12, "1.2e9-2e9")] = Range(1.2e9, 2e9, "1.2e9-2e9")
    """Highest CPU frequency of a device."""
    max_power_dbm: Annotated[Range, numbers_within(-100.0, 100.0, "20-30")] = Range(20, 30, "20-30")
    """Highest transmit power of a device."""
    energy_budget_joules: Annotated[Range, numbers_within(1e-9, 1e9, "0.8-1.5")] = Range(0.8, 1.5, "0.8-1.5")
    """What a device may spend in an edge round."""

    @property
    def device_ranges(self) -> dict[str, tuple[float, float]]:
        """The ranges that the simulated devices are drawn from, by the names of `espalier.sim.devices.draw_devices`."""
        return {name: getattr(self, name).ends for name in DEVICE_RANGES}


DEVICE_RANGES = ("cycles_per_bit", "max_frequency_hz", "max_power_dbm", "energy_budget_joules")
PROBABILITIES = range_within(0, 1, "a probability, or a range of them like '0.1-0.8'")


class Caching(Section):
    """Video caching."""

    name = "caching"

    exploitation: Annotated[Range, PROBABILITIES] = Range(0.1, 0.8, "0.1-0.8")
    """Probability v_u that a client's next request is the most similar video: a number or a range."""
    similar: Literal["most-similar", "most-similar-not-back"] = "most-similar"
    """How a client chooses a similar video."""
    initial_slots: Annotated[int, Field(gt=0, le=1_000_000)] = 100
    """Time slots of requests before the first edge round."""
    slots_per_edge_round: Annotated[int, Field(ge=0, le=10_000)] = 4
    """Time slots that pass in an edge round."""


class Asynchrony(Section):
    """Tiers that do not wait for their slowest."""

    name = "async"

    mode: Literal["off", "fedbuff", "fedasync", "semi-synchronous"] = "off"
    """When the cloud aggregates what edges, or in a flat algorithm clients, send; off waits for all in every round."""
    tier: Literal["cloud", "edges"] = "cloud"
    """Who does not wait: the cloud, or each edge for its clients, under a cloud that waits for the edges."""
    clock: Literal["auto", "simulated", "wall"] = "auto"
    """What time is: simulated, or that of the clock on the wall; auto is wall with deploy.role = "cloud"."""
    buffer_size: NotNegative = 0
    """fedbuff: updates in an aggregation (the paper's K); 0 is half of the edges, or clients."""
    staleness: StalenessSetting = StalenessWeight("polynomial", (0.5,), "polynomial(0.5)")
    """What an update weighs by its staleness t: constant, polynomial(A): (1 + t)^-A, or hinge(A, B)."""
    max_staleness: NotNegative = 0
    """An update that began more aggregations ago is left out; 0: none is."""
    concurrency: NotNegative = 0
    """The most edges, or clients, that train at a time; 0: all."""
    mixing: Annotated[float, Field(gt=0, le=1)] = 0.6
    """fedasync: what an update without staleness is of the new model (the paper's alpha)."""
    deadline_seconds: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    """semi-synchronous: seconds by the clock after which what is in is aggregated; 0 waits for all."""
    median_seconds: Annotated[float, Field(gt=0, le=1e9)] = 60.0
    """Median over clients of an edge round's simulated time, where no radio world says it."""
    sigma: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Standard deviation of that time's logarithm over clients; 0: all are equally fast."""
    trace: str = ""
    """CSV file of such times instead, with columns client and seconds."""

    def buffer_size_of(self, num_nodes: int) -> int:
        """Return the K of fedbuff over so many edges, or clients."""
        return self.buffer_size or max(num_nodes // 2, 1)


class Availability(Section):
    """Clients that come and go, or move to another edge, in a simulation of them."""

    name = "availability"

    mode: Literal["always", "markov", "trace"] = "always"
    """Who is there when an edge round begins."""
    leave: Annotated[float, Field(ge=0, le=1)] = 0.1
    """markov: probability per edge round that a client that is there leaves."""
    back: Annotated[float, Field(gt=0, le=1)] = 0.4
    """markov: probability per edge round that a client that is away comes back."""
    trace: str = ""
    """trace: CSV file with columns client, from and to, in edge rounds; to is the first in which it is away."""
    drop_out: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability that a client that began an edge round is gone before it answers."""
    moves: str = ""
    """CSV file with columns client, from and edge: in the global round from, the client moves to that edge."""

    @property
    def comes_and_goes(self) -> bool:
        """True where not all clients are always there."""
        return self.mode != "always" or self.drop_out > 0


class RayWorkers(Section):
    """Workers of engine = "ray"."""

    name = "ray"

    workers: NotNegative = 0
    """Worker processes; 0: one for each core, of this machine or of the cluster, but no more than edges or clients."""
    address: str = ""
    """HOST:PORT of a cluster that `ray start` made, or auto; "" starts Ray on this machine."""
    gpus_per_worker: Annotated[float, Field(ge=0, le=64)] = 0.0
    """Share of a GPU for each worker, or several; 0: an equal share where device is a GPU."""


class Guards(Section):
    """What one client's reply, or one edge's, may do to a model."""

    name = "guard"

    mode: Literal["leave-out", "clip", "warn", "off"] = "leave-out"
    """What becomes of a reply beyond a bound: left out, made as small as the bound says, only logged, or nothing."""
    update_norm: Bound = 0.0
    """How many times the median length of the others' updates an update may have; 0: any length that is not absurd."""
    activation_norm: Bound = 0.0
    """How many times the median length a sample's activations at the cut may have; 0: likewise."""


class Stop(Section):
    """What ends a run before its last global round; the round that reaches it is the last."""

    name = "stop"

    accuracy: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Accuracy on the whole test pool; 0: none."""
    patience: NotNegative = 0
    """So many evaluated rounds without a higher accuracy on the whole test pool; 0: none."""
    seconds: Annotated[float, Field(ge=0, le=MOST)] = 0.0
    """Wall time since the run began; 0: none."""
    bytes: Annotated[int, Field(ge=0, le=10**18)] = 0
    """Bytes of all rounds and tiers, evaluations too; 0: none."""
    joules: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """With plans: joules of all clients; 0: none."""


class Deploy(Section):
    """Where the tiers run, and how long they wait."""

    name = "deploy"

    role: Literal["server", "cloud", "edge"] = "server"
    """server runs both tiers; cloud and edge are for edges that have hosts of their own."""
    edge_name: str = ""
    """With deploy.role = "edge": the name of this edge."""
    edge_folder: str = ""
    """With deploy.role = "edge": the private folder where the edge's run and its gateway meet."""
    edge_clients: NotNegative = 0
    """With deploy.role = "edge": how many of the num-clients clients are this edge's."""
    reply_timeout: NotNegative = 3600
    """Seconds that an edge waits for its clients' answers; 0 waits for ever."""
    wait_for_nodes: NotNegative = 20
    """Seconds to wait for num-clients SuperNodes before giving up."""
    nodes_move: bool = False
    """Ask the SuperNodes before every global round which edge they name; who names another one moves there."""


class Report(Section):
    """What is reported."""

    name = "report"

    evaluate_every: NotNegative = 1
    """Evaluate the global model every so many global rounds and after the last; 0: only then."""
    plots: bool = True
    """Draw the plots at the end."""
    tracker: str = ""
    """An object of your own that gets the figures of every round: package.module:Class(argument=value)."""
