"""The sections of the run config, by concern. Functions take the section that they need."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from espalier.app.ground.object_spec import ObjectSpec, parse_object
from espalier.app.ground.registered import parse_registered
from espalier.app.ground.strategy_spec import StrategySpec, parse_strategy
from espalier.app.settings.dataset_source import parse_dataset
from espalier.app.settings.section import Before, Section, Tag
from espalier.app.settings.tracker_kinds import Trackers, parse_trackers
from espalier.app.settings.values import (
    NO_TAIL,
    AugmentationSetting,
    Channels,
    ClassesSetting,
    ColumnsSetting,
    Cuts,
    CutsSetting,
    EdgeNamesSetting,
    Range,
    Tail,
    TailSetting,
    Words,
    channels_from,
    numbers_within,
    range_within,
)
from espalier.strategies.allocation import solvers

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


SOLVERS = tuple(name for name, kind in solvers.SOLVERS.items() if not kind.is_rule)
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


def _solver(given: Any) -> ObjectSpec:
    """Return which solver is meant, with its parameters, or one of the user's own."""
    name, bracket, rest = given.partition("(") if isinstance(given, str) else ("", "", "")
    if not (bracket and name in SOLVERS):
        return _function("plan.solver", SOLVERS, given)
    try:
        parameters = parse_object(f"_({rest}")[2]  # not all of the names are Python's
    except ValueError:
        return _function("plan.solver", SOLVERS, given)
    return ObjectSpec("plan.solver", given, "", name, parameters)


_value = partial(_function, "plan.value", BUILT_IN_VALUES)


def _bound(value: float) -> float:
    if 0 < value < 1:
        raise ValueError("0, for no bound of your own, or a number from 1 to 1e9")
    return value


Bound = Annotated[float, Field(ge=0, le=1e9), AfterValidator(_bound)]
SolverSetting = Annotated[ObjectSpec, BeforeValidator(_solver)]
ValueSetting = Annotated[ObjectSpec, BeforeValidator(_value)]
DatasetSetting = Annotated[ObjectSpec, BeforeValidator(parse_dataset)]
PartitionSetting = Annotated[ObjectSpec, BeforeValidator(partial(parse_registered, "partition"))]
ModelSetting = Annotated[ObjectSpec, BeforeValidator(partial(parse_registered, "model"))]
AuxiliarySetting = Annotated[ObjectSpec, BeforeValidator(partial(parse_registered, "split.auxiliary"))]
TaskSetting = Annotated[ObjectSpec, BeforeValidator(_task)]
CloudStrategy = Annotated[StrategySpec, BeforeValidator(partial(_strategy, "cloud-strategy"))]
EdgeStrategy = Annotated[StrategySpec, BeforeValidator(partial(_strategy, "edge-strategy"))]


class Federation(Section):
    """Who trains, in which tiers and rounds."""

    name = "federation"

    num_clients: Annotated[int, Field(gt=0, le=1_000_000), Tag.COMMON, Tag.FIRST] = 8
    """Number of clients. With `engine="flower"` the run needs as many SuperNodes."""
    num_edges: Annotated[NotNegative, Tag.COMMON, Tag.FIRST] = 0
    """Number of edges, and of radio cells in a planned run. 0 is the algorithm's own number: 2 with two tiers, none for
    `"sl"`, `"sfl-v1"` and `"sfl-v2"`.
    """
    edge_names: Annotated[EdgeNamesSetting, Tag.COMMON, Tag.OWN_AT_EDGES] = Words((), "")
    """The edges that a node's `edge-name`, or an edge host, may name: `"west,east"`; `""`: any. Others are left out,
    with a line in the log.
    """
    global_rounds: Annotated[Positive, Tag.COMMON, Tag.FIRST, Tag.ENDS] = 10
    """Global rounds."""
    edge_rounds: Annotated[Positive, Tag.COMMON, Tag.FIRST] = 2
    """Edge rounds per global round (the papers' kappa_1). Not used by flat algorithms."""
    participation: Annotated[float, Field(gt=0, le=1), Tag.COMMON, Tag.FIRST, Tag.TRAINS_CLIENTS] = 1.0
    """Share of an edge's clients, or of all clients in one tier, that train in a round (at least one). It must be 1.0
    with plans, and where single clients are not waited for (`async.concurrency`).
    """
    cloud_strategy: Annotated[CloudStrategy, Tag.COMMON, Tag.FIRST, Tag.OWN_AT_EDGES] = parse_strategy(
        "cloud-strategy", "FedAvg"
    )
    """Strategy of the cloud: `"NAME"` or `"NAME(parameter=value, ...)"`, see below. SL and SFL-V2 work with all but
    `FedProx`; without edges only `"fedavg"` works with others than `FedAvg`.
    """
    edge_strategy: Annotated[EdgeStrategy, Tag.COMMON, Tag.FIRST] = parse_strategy("edge-strategy", "FedAvg")
    """Strategy of every edge, likewise. In SFL-V1, HSFL and PHSFL it aggregates the clients' whole models, client block
    and server block together.
    """


class Data(Section):
    """Data and model."""

    name = "data"

    task: Annotated[TaskSetting, Tag.COMMON, Tag.WITH_OWN_TASK, Tag.SPEAKS] = _task("")
    """A model and data of your own: `"package.module:NAME(argument=value, ...)"`, see [own tasks](own-task.md). All
    other keys of this table must then keep their defaults, except `data.validation-share` and, for a task that has a
    [pool](own-task.md#a-pool-to-share-out), those of partitions.
    """
    dataset: Annotated[DatasetSetting, Tag.COMMON, Tag.FIRST, Tag.SPEAKS] = parse_dataset("digits")
    """A name of [the table](data-and-models.md), such as `"digits"` (in scikit-learn, no download), `"cifar10"`,
    `"image-folder"` or `"video-caching"`, which is simulated (see below); [a set of Hugging
    Face's](data-and-models.md#sets-of-hugging-face), `"hf:ORG/NAME"` or `"hf:/a/folder"`; or [a function of your
    own](data-and-models.md#a-data-set-of-your-own), `"package.module:function"`.
    """
    data_dir: Annotated[str, Tag.COMMON, Tag.PATH, Tag.OWN_AT_EDGES, Tag.MAY_CHANGE, Tag.READS_DATA] = ""
    """Folder of the data; `""` is `downloads` in the folder of `data.cache-dir`. For `"image-folder"` it holds
    `train/<class>/*` and `test/<class>/*`, or `<class>/*` alone.
    """
    partition: Annotated[PartitionSetting, Tag.COMMON, Tag.FIRST, Tag.WITH_OWN_TASK, Tag.READS_DATA] = parse_registered(
        "partition", "dirichlet"
    )
    """`"iid"`, `"dirichlet"`, `"dirichlet-per-class"`, `"shards"`, by edges `"edge-dirichlet"`, `"edge-iid"` and
    `"iid-in-edges"`, one of Flower Datasets', `"flwr:DirichletPartitioner(alpha=0.5)"`, a function of your own,
    `"package.module:function"` (see [partitions](data-and-models.md#partitions)), or `"own"`: clients have [folders of
    their own](data-and-models.md#devices-with-data-of-their-own). A client's test set has the classes of its training
    set.
    """
    alpha: Annotated[float, Field(gt=0, le=1e6), Tag.COMMON, Tag.FIRST, Tag.WITH_OWN_TASK, Tag.READS_DATA] = 0.5
    """Concentration of the Dirichlet partition over clients; small is heterogeneous."""
    edge_alpha: Annotated[float, Field(gt=0, le=1e6), Tag.COMMON, Tag.WITH_OWN_TASK, Tag.READS_DATA] = 0.5
    """Likewise over edges, with `partition="edge-dirichlet"` and `"iid-in-edges"`."""
    model: Annotated[ModelSetting, Tag.COMMON, Tag.FIRST, Tag.SPEAKS, Tag.TRAINING] = parse_registered("model", "auto")
    """`"small-cnn"`, `"cnn"`, `"resnet18"`, `"resnet18-imagenet"`, `"resnet50"`, or [a function of your
    own](data-and-models.md#a-model-of-your-own), `"package.module:function"`; `"auto"` is `"small-cnn"` for digits,
    else `"cnn"`, and for texts and tables a [small network](data-and-models.md#sets-of-hugging-face).
    """
    inputs: Annotated[ColumnsSetting, Tag.OF_COLUMNS, Tag.READS_DATA] = Words((), "")
    """With `dataset="hf:..."`: the columns that a model gets, `"image"` or `"age,height"`; `""`: they are found."""
    label: Annotated[str, Tag.OF_COLUMNS, Tag.READS_DATA] = ""
    """Likewise: the column to predict; `""`: it is found."""
    tokenizer: Annotated[str, Tag.OF_COLUMNS, Tag.READS_DATA] = ""
    """Likewise, for texts: a `tokenizer.json`, a folder with one, or a model's name on the Hugging Face hub."""
    max_tokens: Annotated[Positive, Tag.READS_DATA] = 128
    """Likewise: tokens of a text; what is longer is cut."""
    test_share: Annotated[float, Field(gt=0, lt=1), Tag.READS_DATA] = 0.2
    """Of data that are not divided into training and test examples: the share of each class to test on, drawn by the
    seed.
    """
    cache_dir: Annotated[str, Tag.PATH, Tag.OWN_AT_EDGES, Tag.HOW, Tag.READS_DATA] = ""
    """Folder for decoded data; by default `espalier` in `$XDG_CACHE_HOME`, or in `~/.cache`."""
    image_size: Annotated[int, Field(ge=0, le=4096), Tag.READS_DATA] = 0
    """Side in pixels of the squares that images of a folder, or of `"hf:..."`, are resized to; 0 keeps their size."""
    augmentation: Annotated[AugmentationSetting, Tag.READS_DATA] = Words((), "")
    """Random changes to each image that is trained on, one after the other, as in `"crop,flip"`: `crop` (of the same
    size, out of the image with 4 black pixels more on each side), `flip` (left and right), `vertical-flip`,
    `rotation` (up to 20 degrees either way).
    """
    classes: Annotated[ClassesSetting, Tag.OF_OWN_FOLDERS, Tag.READS_DATA] = Words((), "")
    """With `partition="own"`: the names of the classes, `"cat,dog"`; a client's folder may lack some."""
    pixel_mean: Annotated[Channels, channels_from(0.0), Tag.OF_OWN_FOLDERS, Tag.READS_DATA] = Channels((), "")
    """With `partition="own"`: mean of each channel, of pixels from 0 to 1: `"0.5,0.5,0.5"`."""
    pixel_std: Annotated[Channels, channels_from(1e-6), Tag.OF_OWN_FOLDERS, Tag.READS_DATA] = Channels((), "")
    """With `partition="own"`: standard deviation of each channel, likewise."""
    shards_per_client: Annotated[Positive, Tag.WITH_OWN_TASK, Tag.READS_DATA] = 2
    """With `partition="shards"`: shards of each client."""
    min_samples: Annotated[Positive, Tag.WITH_OWN_TASK, Tag.READS_DATA] = 10
    """Least number of training samples of a client."""
    validation_share: Annotated[float, Field(ge=0, lt=1), Tag.WITH_OWN_TASK, Tag.READS_DATA] = 0.0
    """Share of each client's training samples that it holds back from training, drawn by the seed: the round that does
    best on them is [the best one](use-the-model.md#the-best-round). Also with `task`; not for `"video-caching"`.
    """

    @property
    def source(self) -> str:
        """The setting that says which task it is, for messages."""
        return f"task = {self.task.text!r}" if self.task.text else f"dataset = {self.dataset.text!r}"

    @property
    def title(self) -> str:
        """What reports call it."""
        return self.task.name or Path(self.dataset.name).name


class TrainSettings(Section):
    """Local training."""

    name = "train"
    tags = (Tag.TRAINING,)

    local_epochs: Annotated[Positive, Tag.COMMON, Tag.FIRST] = 2
    """Local epochs per edge round (kappa_0)."""
    batches_per_epoch: Annotated[NotNegative, Tag.COMMON, Tag.FIRST, Tag.LEFT_OPEN] = 0
    """Mini-batches per local epoch; 0 is the whole local set, and 10 for plans on data that grow (video caching)."""
    batch_size: Annotated[Positive, Tag.COMMON, Tag.FIRST] = 32
    """Examples of a mini-batch."""
    optimizer: Annotated[Literal["sgd", "adam"], Tag.COMMON, Tag.FIRST, Tag.OPTIMIZER] = "sgd"
    """`"sgd"` or `"adam"`; its state starts afresh in every round."""
    learning_rate: Annotated[Rate, Tag.COMMON, Tag.FIRST] = 0.1
    """Learning rate."""
    momentum: Annotated[Momentum, Tag.OPTIMIZER] = 0.0
    """Of SGD."""
    weight_decay: Annotated[Decay, Tag.OPTIMIZER] = 0.0
    """Weight decay."""
    schedule: Literal["constant", "cosine"] = "constant"
    """`"cosine"`: in global round t of T the learning rate is `learning-rate` * (1 + cos(pi * (t - 1) / T)) / 2, and
    that of the server's blocks falls likewise.
    """
    drop_last: bool = False
    """`true`: a pass over a client's data leaves out its last mini-batch if that is smaller than the others. A client
    with fewer examples than a mini-batch trains on them all.
    """
    weighting: Literal["examples", "equal"] = "examples"
    """Weights of averages. `"examples"`: a client's weight is its number of training examples; `"equal"`: all clients
    of an edge weigh the same, and all edges, as always in RawHFL.
    """
    torch_threads: Annotated[int, Field(gt=0, le=1024)] = 1
    """PyTorch threads per process. Another number can change the last bits of a result."""
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """How blocks of models multiply: in `"float32"`; in `"bfloat16"`, with 8 bits of mantissa, by PyTorch's [automatic
    mixed precision](https://docs.pytorch.org/docs/stable/amp.html); on a GPU in `"tf32"`, with 11. Weights, and what
    goes from block to block, stay float32 ([what it gives](benchmarks.md#narrower-numbers)).
    """
    channels_last: bool = False
    """`true`: the channels of a pixel lie together in memory, which is faster for most convolutions and changes last
    bits.
    """
    cuda_graph: Annotated[bool, Tag.OWN_AT_EDGES, Tag.HOW] = False
    """`true`: where a GPU trains the whole models of clients one after the other, the gradients of mini-batches of
    `batch-size` examples are recorded once as a [CUDA
    graph](https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs) and replayed. It gives the same bits,
    and pays for small models ([on a GPU](benchmarks.md#on-a-gpu)).
    """


class Split(Section):
    """Split training."""

    name = "split"
    tags = (Tag.CUTS,)

    cut_layer: Annotated[CutsSetting, Tag.COMMON, Tag.FIRST] = Cuts((1,), 1)
    """Number of blocks on a client, or the name of its last one (`espalier blocks` lists them); `"1,2,4"` gives clients
    0, 1, 2, 3 and so on the cuts 1, 2, 4, 1 and so on. With `selection="resource-aware"`, `"best"` lets every plan
    choose each client's cut.
    """
    tail_layer: Annotated[TailSetting, Tag.COMMON] = Tail(NO_TAIL)
    """Where the clients' last blocks begin, which with the labels stay on the client
    ([U-shaped](split-learning.md#labels-and-heads-that-stay-on-the-device)): the name of a block, or the number of
    blocks in front of it. `"none"`: the edge has the last blocks.
    """
    label_policy: Annotated[Literal["auto", "indices", "labels"], Tag.LEFT_OPEN] = "auto"
    """`"indices"`: labels are registered at the edge once, then only sample indices travel; `"labels"`: labels travel
    with the activations. `"auto"`: labels where the data grow (video caching), else indices.
    """
    server_optimizer: Annotated[Literal["sgd", "adam"] | AsClients, Tag.LEFT_OPEN, Tag.OPTIMIZER] = AS_CLIENTS
    """Of the server's blocks: `"sgd"` or `"adam"`; `"as-clients"` takes `optimizer`. With this and the next three as
    they are, the server's blocks [train as the clients' do](split-learning.md#the-servers-optimizer).
    """
    server_learning_rate: Annotated[float, Field(ge=0, le=LARGEST)] = 0.0
    """0 takes `learning-rate`."""
    server_momentum: Annotated[Momentum | AsClients, Tag.LEFT_OPEN, Tag.OPTIMIZER] = AS_CLIENTS
    """Of the server's SGD: a number, or `"as-clients"`, which takes `train.momentum`."""
    server_weight_decay: Annotated[Decay | AsClients, Tag.LEFT_OPEN, Tag.OPTIMIZER] = AS_CLIENTS
    """A number, or `"as-clients"`, which takes `train.weight-decay`."""
    server_order: Literal["interleaved", "one-by-one", "in-client-order"] = "interleaved"
    """SFL-V2: `"interleaved"` takes one mini-batch of each client in a random order, drawn anew each time.
    `"one-by-one"` takes all mini-batches of a client before the next client's, the clients in an order drawn anew in
    each round, `"in-client-order"` in their own order.
    """
    evaluate: Literal["split", "whole"] = "split"
    """`"split"`: activations of the test sets come up, outputs go down, and the clients compute their figures; no
    client gets other blocks than its own. `"whole"`: every client gets the whole model, which takes fewer bytes
    where it is smaller than those activations.
    """
    transport: Literal["messages", "stream"] = "messages"
    """`"messages"`: a Flower message per mini-batch. `"stream"`: one Flower message per round, and a stream from the
    client to its edge for all mini-batches ([streams](streams.md)).
    """
    execution: Literal["fused", "messages"] = "fused"
    """Where clients and edge are in one process: `"fused"`: one message per round, inside of which client block and
    server block train in turns, to the same bits as by messages, and what messages would have held is counted as
    sent. `"messages"`: a message per mini-batch.
    """

    auxiliary: AuxiliarySetting = parse_registered("split.auxiliary", "linear")
    """With [`cse-fsl`, `fsl-sage` and `decoupled`](split-learning.md#local-losses): the small model behind a client's
    blocks by whose loss they train. `"linear"`: one linear layer, of images behind the mean over each channel;
    `"first-block"`: a copy of the first of the edge's blocks in front of it; or a function of your own:
    `"package.module:function"`.
    """
    upload_every: Annotated[int, Field(ge=0, le=MOST)] = 1
    """With these: each client sends the activations of every n-th of its mini-batches of a round, from the first
    on, and the edge trains on them; 0: none, so the edge's blocks stay as they are.
    """

    def beside(self, train: TrainSettings) -> "Split":
        """Return these settings where clients train so: the server's blocks too, unless they have their own."""
        left_open = {
            "server_optimizer": train.optimizer,
            "server_momentum": train.momentum,
            "server_weight_decay": train.weight_decay,
        }
        return self.model_copy(update={k: v for k, v in left_open.items() if getattr(self, k) == AS_CLIENTS})


class StreamSettings(Section):
    """Streams from clients to their edge."""

    name = "stream"

    payload: Literal["float32", "float16", "bfloat16", "int8", "top-25%", "top-10%"] = "float32"
    """Format of activations and gradients in a stream: `"float32"`, `"float16"`, `"bfloat16"`, `"int8"` with a scale
    per sample, or only the largest values of each sample, `"top-25%"` and `"top-10%"`, whose rest is added later,
    except with `tail-layer` or `split.label-policy="labels"` ([streams](streams.md#smaller-payloads)).
    """
    address: Annotated[str, Tag.OWN_AT_EDGES, Tag.HOW] = "127.0.0.1"
    """Name or address under which clients reach the edge."""
    port: Annotated[int, Field(ge=0, le=65535), Tag.OWN_AT_EDGES, Tag.HOW] = 0
    """Port of the stream; 0 takes a free one."""
    certificate: Annotated[str, Tag.PATH, Tag.OWN_AT_EDGES, Tag.HOW] = ""
    """PEM file of a certificate for `stream.address`; by default one is made for the run."""
    key: Annotated[str, Tag.PATH, Tag.OWN_AT_EDGES, Tag.HOW] = ""
    """PEM file of the key of `stream.certificate`."""
    timeout: Annotated[float, Field(ge=0.001, le=86_400), Tag.OWN_AT_EDGES, Tag.MAY_CHANGE] = 60.0
    """Seconds that an edge waits for a client's next mini-batch."""
    micro_batches: Annotated[int, Field(ge=1, le=1024)] = 1
    """Parts in which a client sends each mini-batch: the edge computes on one while the next is under way
    ([when that pays](streams.md#micro-batches)). Not for models with BatchNorm, `tail-layer`, and clients that advance
    together at one server block.
    """


class FineTune(Section):
    """Heads of the clients' own, after training."""

    name = "fine-tune"
    tags = (Tag.TUNES,)

    steps: NotNegative = 10
    """SGD steps on each client's own head after training (the PHSFL paper's K); 0: no fine-tuning."""
    rate: Rate = 0.01
    """Their learning rate."""


class Plans(Section):
    """Resource awareness: whom a plan selects, and the limits that it keeps."""

    name = "plan"

    selection: Annotated[Literal["everybody", "resource-aware"], Tag.COMMON] = "everybody"
    """`"resource-aware"` puts plans in front of the edges of any other algorithm that trains clients, including split
    ones, but not `"sl"`, nor `"sfl-v2"` with `split.server-order` `"one-by-one"` or `"in-client-order"`. Plans need
    `participation=1.0`, and with split training one cut for all clients, or `cut-layer="best"`.
    """
    resources: Literal["simulated", "measured"] = "simulated"
    """`"measured"`: plans are made for what devices measure of themselves, not for the simulated radio world ([plans
    for real devices](measured-plans.md)).
    """
    solver: Annotated[SolverSetting, Tag.SELECTS] = _solver("exact")
    """`"exact"`, `"sca"` (the paper's; not for split training, where uploads grow with rounds), `"random"`,
    `"cheapest-at-full-power"`, another of [the solvers](allocation.md#solvers), some of which take parameters, such as
    `"oort(window=10)"`, or `"package.module:function"` of your own.
    """
    selected_per_edge: Annotated[NotNegative, Tag.LEFT_OPEN, Tag.SELECTS] = 0
    """Clients selected in each cell, Z; 0 is half of a cell's clients, rounded up."""
    spare: Annotated[NotNegative, Tag.SELECTS] = 0
    """Clients selected in each cell beyond Z: an edge goes on with the first Z results of a cell ([spare
    clients](plans.md#spare-clients)).
    """
    max_overlap: Annotated[int, Field(ge=-1, le=MOST), Tag.SELECTS] = -1
    """At most this many of the selected clients, spare ones included, may also have been selected in the previous edge
    round (Psi), or as many as must be where too few others are there, in one tier in all cells. -1 is half of the
    selected clients, or more where the cell is too small for that.
    """
    max_local_rounds: Annotated[int, Field(ge=0, le=100_000), Tag.LEFT_OPEN] = 0
    """Most local rounds, L (50 in the RawHFL paper); 0 is `local-epochs`."""
    deadline_seconds: Annotated[float, Field(gt=0, le=1e9)] = 150.0
    """Time to compute and upload in an edge round."""
    margin: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the deadline that plans leave unused: with 0.2 they fill 80 % of it."""
    late_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the results that may be late by `radio.planning-error-db`, such as 0.05; 0: plans trust the gains that
    they see ([plans with margin](plans.md#plans-with-margin)).
    """
    divide_by_arrived: bool = False
    """Edges that add up gradients (`rawhfl`, `h-fedavg-m1`, `h-fedavg-m2`) divide the gradients that arrive by the
    share of their results that arrived in the rounds before, 1/p_sc in eq. 15 of RawHFL's paper: steps stay as long
    as if all arrived.
    """
    theta: Annotated[float, Field(ge=0, le=1), Tag.SELECTS] = 0.4
    """Weight of local rounds against energy, from 0 to 1."""
    min_frequency_hz: Annotated[float, Field(ge=0, le=1e12), Tag.SELECTS] = 0.0
    """Lowest CPU frequency that a plan may choose; for a measured device at least its own."""
    downlink_bits_per_second: Annotated[float, Field(ge=0, le=1e15)] = 0.0
    """Rate of the downlink, for models and cut gradients; 0 ignores the time for it."""
    value: Annotated[ValueSetting, Tag.SELECTS] = _value("uniform")
    """What a client is worth besides its rounds and joules: `"uniform"`, `"loss"`, `"age"`, `"battery"`, or
    `"package.module:function"` of your own ([what a client is worth](plans.md#what-a-client-is-worth)).
    """
    value_weight: Annotated[float, Field(ge=0, le=1e9), Tag.SELECTS] = 1.0
    """Weight of that value in the objective: at 1, a value of 1 counts as much as 1/`plan.theta` local rounds."""
    battery_joules: Annotated[float, Field(ge=0, le=1e12), Tag.SELECTS] = 0.0
    """What each client may spend in the whole run: one whose battery is empty can't take part. 0 is no limit."""

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
    trace: Annotated[str, Tag.PATH] = ""
    """CSV file with the clients' places, or their links' gains, or both, in each edge round, instead of drawn ones
    ([traces](radio.md#a-trace)). The results folder of a planned run has its own, `radio-trace.csv`.
    """
    carrier_hz: Annotated[float, Field(ge=0.5e9, le=100e9)] = 2.4e9
    """Carrier frequency ([the radio model](radio.md))."""
    station_height_metres: Annotated[float, Field(gt=13, le=500)] = 25.0
    """Height of the base stations' antennas."""
    client_height_metres: Annotated[float, Field(ge=1.5, le=13)] = 1.5
    """Height of the clients' antennas."""
    shadowing_los_db: Annotated[float, Field(ge=0, le=60)] = 4.0
    """Standard deviation of the shadowing of links with a line of sight."""
    shadowing_nlos_db: Annotated[float, Field(ge=0, le=60)] = 6.0
    """Likewise of links without one."""
    fading: Literal["redrawn", "static"] = "redrawn"
    """Line of sight and shadowing: drawn anew in every edge round, or `"static"`."""
    bandwidth_hz: Annotated[float, Field(ge=1, le=1e12)] = 540e3
    """Bandwidth of the radio resource (pRB) of each selected client."""
    noise_figure_db: Annotated[float, Field(ge=0, le=60)] = 0.0
    """Noise figure of the base stations' receivers."""
    planning_error_db: Annotated[float, Field(ge=0, le=60)] = 0.0
    """Standard deviation between the channel gains that plans see and the true ones. Plans fill the deadline, so a
    client is late whenever its channel is worse than seen, unless there is a `plan.late-share` or `plan.margin`.
    """
    speed_metres_per_second: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Speed at which clients walk, each straight on; between global rounds they move to the edge of the nearest base
    station ([clients that move](availability.md#clients-that-move-to-another-edge)).
    """
    cycles_per_bit: Annotated[Range, numbers_within(1e-6, 1e9, "25-40"), Tag.DEVICE] = Range(25, 40, "25-40")
    """CPU cycles of a device per bit of training data: a number, or a range from which each device draws."""
    max_frequency_hz: Annotated[Range, numbers_within(1.0, 1e12, "1.2e9-2e9"), Tag.DEVICE] = Range(
        1.2e9, 2e9, "1.2e9-2e9"
    )
    """Highest CPU frequency of a device, likewise."""
    max_power_dbm: Annotated[Range, numbers_within(-100.0, 100.0, "20-30"), Tag.DEVICE] = Range(20, 30, "20-30")
    """Highest transmit power of a device, likewise."""
    energy_budget_joules: Annotated[Range, numbers_within(1e-9, 1e9, "0.8-1.5"), Tag.DEVICE] = Range(
        0.8, 1.5, "0.8-1.5"
    )
    """Energy that a device may spend in an edge round, likewise."""

    @property
    def device_ranges(self) -> dict[str, tuple[float, float]]:
        """The ranges that the simulated devices are drawn from, by the names of `espalier.sim.devices.draw_devices`."""
        return {name: getattr(self, name).ends for name in self.tagged(Tag.DEVICE)}


PROBABILITIES = range_within(0, 1, "a probability, or a range of them like '0.1-0.8'")


class Caching(Section):
    """Video caching."""

    name = "caching"

    exploitation: Annotated[Range, PROBABILITIES] = Range(0.1, 0.8, "0.1-0.8")
    """Probability v_u that a client's next request is the most similar video: a number, or a range from which each
    client draws.
    """
    similar: Literal["most-similar", "most-similar-not-back"] = "most-similar"
    """How a client chooses a similar video. `"most-similar-not-back"` never goes back to the video before the last."""
    initial_slots: Annotated[int, Field(gt=0, le=1_000_000)] = 100
    """Time slots of requests before the first edge round."""
    slots_per_edge_round: Annotated[int, Field(ge=0, le=10_000)] = 4
    """Time slots that pass in an edge round."""


class RayWorkers(Section):
    """Workers of engine = "ray"."""

    name = "ray"
    tags = (Tag.OWN_AT_EDGES, Tag.HOW)

    workers: NotNegative = 0
    """Worker processes; 0: one for each core of this machine, or of the cluster, but no more than there are edges, or
    clients without edges. With `train.torch-threads=2` one for two cores.
    """
    address: str = ""
    """`"HOST:PORT"` of a cluster that `ray start` made, or `"auto"` on a machine of it. `""` starts Ray on this
    machine, and stops it at the end.
    """
    gpus_per_worker: Annotated[float, Field(ge=0, le=64)] = 0.0
    """Share of a GPU for each worker, such as 0.25, or several GPUs. 0: an equal share of the machine's where `device`
    is a GPU.
    """


class Guards(Section):
    """What one client's reply, or one edge's, may do to a model."""

    name = "guard"
    tags = (Tag.TRAINS_CLIENTS,)

    mode: Annotated[Literal["leave-out", "clip", "warn", "off"], Before("off")] = "leave-out"
    """What becomes of a reply beyond a bound. `"leave-out"`: it is left out, logged and counted; `"clip"`: its update,
    or its activations, are made as long as the bound says, which needs a bound of your own; `"warn"`: it is logged;
    `"off"`: nothing is measured.
    """
    update_norm: Bound = 0.0
    """The longest update that is taken, in multiples of the round's median length; an update is the returned model
    minus the sent one, and `10` is [a tight bound](threats.md#a-tight-bound). `0`: only an update more than 10^9 times
    as long as the median, and as the model, is refused.
    """
    activation_norm: Annotated[Bound, Tag.CUTS] = 0.0
    """How many times the median length a sample's activations at the cut may have. `0`: up to 10^9 times; `5` is a
    tight bound.
    """


class Stop(Section):
    """What ends a run before its last global round; the round that reaches it is the last."""

    name = "stop"
    tags = (Tag.OWN_AT_EDGES, Tag.ENDS)

    accuracy: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Accuracy on the whole test pool, from 0 to 1; 0: none. It is looked at where `report.evaluate-every` has the
    model evaluated.
    """
    patience: NotNegative = 0
    """So many evaluated rounds in a row without a higher accuracy on the whole test pool; 0: none."""
    seconds: Annotated[float, Field(ge=0, le=MOST)] = 0.0
    """Wall time since the run began, resumed parts added up; 0: none. It is looked at after every global round."""
    bytes: Annotated[int, Field(ge=0, le=10**18)] = 0
    """Bytes up and down in all tiers, evaluations too; 0: none."""
    joules: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """With [plans](plans.md): joules of all clients; 0: none."""


class Deploy(Section):
    """Where the tiers run, and how long they wait."""

    name = "deploy"
    tags = (Tag.OWN_AT_EDGES,)

    role: Literal["server", "cloud", "edge"] = "server"
    """`"server"` runs both tiers. Where edges have hosts of their own, the cloud's run is `"cloud"` and each edge
    host's is `"edge"` ([edge hosts](edge-hosts.md)).
    """
    edge_name: Annotated[str, Tag.OF_EDGE_HOST] = ""
    """With `deploy.role="edge"`: the name of this edge."""
    edge_folder: Annotated[str, Tag.PATH, Tag.OF_EDGE_HOST] = ""
    """With `deploy.role="edge"`: the private folder where the edge's run and its gateway meet."""
    edge_clients: Annotated[NotNegative, Tag.OF_EDGE_HOST] = 0
    """With `deploy.role="edge"`: how many of the `num-clients` clients are this edge's."""
    transport: Annotated[Literal["messages", "stream"], Tag.HOW] = "messages"
    """How messages reach the nodes of Flower's runtime: each by itself, which starts a process on the device, or all
    through a `"stream"` that the device opens once for the run ([a device stays](streams.md#a-device-stays)).
    """
    reply_timeout: Annotated[NotNegative, Tag.HOW] = 3600
    """Seconds that an edge waits for its clients' answers; 0 waits for ever. They count for a client's whole part of an
    edge round, also where it answers in many messages (split training).
    """
    wait_for_nodes: Annotated[NotNegative, Tag.HOW] = 20
    """Seconds to wait for `num-clients` SuperNodes before giving up. The time in which they are asked for their
    profiles does not count.
    """
    metrics_port: Annotated[int, Field(ge=0, le=65535), Tag.HOW] = 0
    """Port where [Prometheus](operations.md#prometheus-and-grafana) finds what the run, or the edge host, counts; 0:
    none.
    """
    metrics_address: Annotated[str, Tag.HOW] = "127.0.0.1"
    """Address of this host where `deploy.metrics-port` is open: by default to programs on it alone, `"0.0.0.0"`: to
    everybody who reaches it.
    """
    nodes_move: bool = False
    """Before every global round the SuperNodes are asked which edge their `edge-name` names; a node that names another
    one [moves there](availability.md#clients-that-move-to-another-edge).
    """


class Report(Section):
    """What is reported."""

    name = "report"

    evaluate_every: Annotated[NotNegative, Tag.OWN_AT_EDGES] = 1
    """Evaluate the global model every so many global rounds, and after the last; 0: only after the last."""
    evaluate_clients: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of an edge's clients, or of all clients in one tier, on which the global model is evaluated: at least one,
    drawn anew each time. 0: it is evaluated on the whole test pool alone.
    """
    plots: Annotated[bool, Tag.OWN_AT_EDGES, Tag.HOW] = True
    """Draw the plots at the end. `false` saves the time, as in a sweep of many short runs; `report_again` [draws them
    later](results.md#reports-of-a-run-that-is-over).
    """
    ledger: Annotated[bool, Tag.OWN_AT_EDGES, Tag.HOW] = False
    """In process: before a run, try what a round of training takes of a client and of its edge in memory and
    arithmetic, for `summary.json` ([the ledger](split-ledger.md)). It costs the time of a round of one edge.
    """
    tracker: Annotated[Trackers, BeforeValidator(parse_trackers), Tag.OWN_AT_EDGES, Tag.BESIDE] = Trackers((), "")
    """Who gets [settings and figures](tracker.md): `"tensorboard"`, `"mlflow"`, `"wandb"` or `"trackio"`, with
    arguments or without, or an object of your own with a method `round_over(number, line)`:
    `"package.module:Class(argument=value)"`; several with commas between them.
    """
    group: Annotated[str, Tag.OWN_AT_EDGES, Tag.HOW, Tag.BESIDE] = ""
    """The group that trackers put the run into; a sweep's runs are in one of its folder's name."""
