"""What travels between a device and its edge in each mode: the records of every message, and what is in them.

The page on privacy says it in a table; `docs/messages.md` says what each message is for.
"""

from contextlib import redirect_stdout
from io import StringIO

import pytest
from flwr.app import ArrayRecord
from flwr.clientapp.mod import LocalDpMod
from rich.console import Console

from espalier.app.config.parse import parse_config
from espalier.app.engines.in_process import InProcess
from espalier.app.reports.progress import BarProgress
from espalier.app.run import checked_run
from espalier.app.run.run import run
from espalier.app.wiring.clients import client_task
from espalier.clients.client_app import make_client_app
from espalier.clients.messages.split_names import INDICES, LABELS
from espalier.clients.messages.train import TRAIN
from espalier.sim.in_process_grid import InProcessGrid

SETTINGS = {
    "engine": "in-process",
    "num-clients": 2,
    "num-edges": 1,
    "global-rounds": 1,
    "edge-rounds": 1,
    "local-epochs": 1,
    "batches-per-epoch": 2,
    "batch-size": 4,
    "fine-tune.steps": 2,
}
BLOCKS = ("conv1", "conv2", "fc1", "head")
FRONT, TAIL, WHOLE = {"conv1"}, {"fc1", "head"}, set(BLOCKS)
FIGURES = {"accuracy", "loss", "num-examples"}
COUNTS = {"num-test-examples", "num-train-examples"}
# By the type of the message: the records that go down and those that come up. Of a record of weights the blocks, of one
# of numbers the keys, of tensors nothing.
PROFILE = {"query.profile": ({}, {"profile": {"class-counts", "partition-id", *COUNTS}})}
EVALUATE = {"evaluate": ({"arrays": WHOLE, "config": {"server-round"}}, {"metrics": FIGURES})}
TRAINED = {"metrics": {"num-examples", "train_loss"}}
PLAN = {"cpu-frequency-hz", "local-rounds", "transmit-power-watts"}


@pytest.fixture(autouse=True)
def no_plots(monkeypatch):
    monkeypatch.setattr(checked_run, "draw_run", lambda *arguments: None)


class Watched:
    """The app, whose messages are noted."""

    def __init__(self):
        self.app, self.noted = make_client_app(client_task, durable=False), {}

    def __call__(self, message, context):
        reply = self.app(message, context)
        noted = self.noted.setdefault(message.metadata.message_type, ({}, {}))
        for way, content in zip(noted, (message.content, reply.content), strict=True):
            for name, record in content.items():
                way.setdefault(name, set()).update(named(name, record))
        return reply


def named(name, record):
    """Return what a record holds: blocks of weights, or keys of numbers; of tensors nothing."""
    if not isinstance(record, ArrayRecord):
        return set(record)
    dtype = "int32" if name in (LABELS, INDICES) else "float32"  # no other tensor has room for them
    assert {array.dtype for array in record.values()} <= {dtype}
    return {array.split(".")[0] for array in record if "." in array}


class Asking(InProcess):
    """An engine whose clients are asked who they are, by messages, as devices are."""

    numbers = None


def key_of(name):
    return name.replace("__", ".").replace("_", "-")


def noted(tmp_path, **settings):
    """Return what travels in a run."""
    config, app = parse_config({**SETTINGS, **{key_of(name): value for name, value in settings.items()}}), Watched()
    grid = InProcessGrid(app, config.federation.num_clients, run_config=config.as_dict(), seed=config.seed)
    with redirect_stdout(StringIO()):
        run(config, Asking(grid), BarProgress(Console(file=StringIO())), tmp_path)
    return app.noted


def test_a_whole_model_its_loss_and_its_figures(tmp_path):
    update = {"train": ({"arrays": WHOLE, "config": {"server-round"}}, {"arrays": WHOLE, **TRAINED})}
    for algorithm in ("fedavg", "h-fedavg"):
        assert noted(tmp_path / algorithm, algorithm=algorithm) == PROFILE | update | EVALUATE


def test_with_plans_each_device_gets_its_own(tmp_path):
    sent = {"arrays": WHOLE, "config": {"server-round", *PLAN}}
    update = {"train.accumulated": (sent, {"accumulated-gradient": WHOLE, **TRAINED})}
    assert noted(tmp_path, algorithm="rawhfl", plan__selected_per_edge=1) == PROFILE | update | EVALUATE


def split_messages(algorithm, policy, evaluate):
    """Return what travels with one cut; the edge has the head."""
    terms = {"label-policy", *({"labels-digest"} if policy == "indices" else {})}
    step = {"cut-gradient": set(), "config": {"label-policy", "server-round", "step"}}
    numbers = {policy: set()}
    activations = {"activations": set(), "metrics": {"num-examples", "num-steps", "step"}, **numbers}
    whole = {"evaluate": ({"arrays": WHOLE, "config": {"server-round"}}, {"metrics": FIGURES})}
    through_cut = {
        "evaluate.split_front": ({"client-block": FRONT, "config": {"cut"}}, {"activations": set()}),
        "evaluate.split_outputs": ({"outputs": set(), "config": set()}, {"metrics": FIGURES}),
    }
    registered = {"query.labels": ({}, {"labels": set(), "metrics": {"labels-digest"}})}
    return {
        **PROFILE,
        **(registered if policy == "indices" else {}),
        "train.split_begin": ({"client-block": FRONT, "config": {"cut", "server-round", *terms}}, activations),
        "train.split_step": (step, activations),
        "train.split_end": (step, {"client-block": FRONT, "metrics": {"num-examples", "step"}}),
        "train.split_features": (
            {"client-block": FRONT, "config": {"cut", "num-steps", *terms}},
            {"activations": set(), "metrics": {"num-examples"}, **numbers},
        ),
        **(whole if evaluate == "whole" else through_cut),
    }


def u_shaped_messages(algorithm, evaluate):
    """Return what travels with two cuts; no label, and of PHSFL's head nothing comes back."""
    config = {"cut", "label-policy", "server-round", "tail", *({"frozen-head"} if algorithm == "phsfl" else {})}
    step = {"cut-gradient": set(), "config": {"label-policy", "server-round", "step"}}
    activations = {"activations": set(), "metrics": {"num-examples", "num-steps", "step"}}
    trained = FRONT | TAIL - ({"head"} if algorithm == "phsfl" else set())
    return {
        **PROFILE,
        "train.split_begin": ({"client-block": FRONT | TAIL, "config": config}, activations),
        "train.split_tail": (
            {"features": set(), "config": {"label-policy", "server-round", "step"}},
            {"feature-gradient": set(), "metrics": {"step"}},
        ),
        "train.split_step": (step, activations),
        "train.split_end": (step, {"client-block": trained, "metrics": {"num-examples", "step", "train_loss"}}),
        "train.split_features": (
            {"client-block": FRONT, "config": {"cut", "label-policy", "num-steps"}},
            {"activations": set(), "metrics": {"num-examples"}},
        ),
        "train.split_head": (
            {"client-block": TAIL, "features": set(), "config": {"learning-rate", "tail"}},
            {},
        ),
        "evaluate.split_front": ({"client-block": FRONT, "config": {"cut"}}, {"activations": set()}),
        "evaluate.split_outputs": (
            # With the whole model only own heads are evaluated through the cut: the head's weights do not go down.
            {
                "features": set(),
                "client-block": TAIL if evaluate == "split" else TAIL - {"head"},
                "config": {"own-head", "tail"},
            },
            {"metrics": FIGURES},
        ),
        **(EVALUATE if evaluate == "whole" else {}),
    }


SPLIT = ("sl", "sfl-v1", "sfl-v2", "hsfl", "phsfl")


@pytest.mark.parametrize("evaluate", ["split", "whole"])
@pytest.mark.parametrize("algorithm", SPLIT)
def test_one_cut(tmp_path, algorithm, evaluate):
    found = noted(tmp_path, algorithm=algorithm, split__evaluate=evaluate)
    assert found == split_messages(algorithm, "indices", evaluate)


def test_one_cut_with_labels_that_travel(tmp_path):
    found = noted(tmp_path, algorithm="hsfl", split__evaluate="split", split__label_policy="labels")
    assert found == split_messages("hsfl", "labels", "split")


@pytest.mark.parametrize("evaluate", ["split", "whole"])
@pytest.mark.parametrize("algorithm", SPLIT)
def test_two_cuts(tmp_path, algorithm, evaluate):
    found = noted(tmp_path, algorithm=algorithm, tail_layer="fc1", split__evaluate=evaluate)
    assert found == u_shaped_messages(algorithm, evaluate)


def test_in_a_stream_messages_hold_no_tensor_of_a_mini_batch(tmp_path):
    """By message go the device's blocks, labels to register, and what fine-tuning and evaluation take."""
    found = noted(tmp_path, algorithm="phsfl", split__transport="stream", split__evaluate="split")
    by_messages = split_messages("phsfl", "indices", "split")
    ticket = {"stream-address", "stream-certificate", "stream-max-bytes", "stream-token"}
    begin, _ = by_messages["train.split_begin"]
    config = {*begin["config"], *ticket, "stream-payload", "stream-timeout"}
    sent = {"client-block": FRONT, "config": config}
    told = by_messages["train.split_end"][1] | {"espalier.seconds": {"moving", "waiting"}}
    streamed = {"train.split_stream": (sent, told)}
    of_steps = ("train.split_begin", "train.split_step", "train.split_end")
    assert found == streamed | {kind: both for kind, both in by_messages.items() if kind not in of_steps}


def test_flowers_local_privacy_clips_what_a_device_sends_of_a_whole_model(tmp_path):
    """Around the handler of `train`; without noise, so that the length of the update is the bound."""
    mod, inner, lengths = LocalDpMod(0.05, 0.0, 1.0, 1e-5), make_client_app(client_task, durable=False), []

    def app(message, context):
        if message.metadata.message_type != TRAIN:
            return inner(message, context)
        reply = mod(message, context, inner)
        updates = [reply.content["arrays"][n].numpy() - array.numpy() for n, array in message.content["arrays"].items()]
        lengths.append(sum(float((update**2).sum()) for update in updates) ** 0.5)
        return reply

    config = parse_config({**SETTINGS, "algorithm": "h-fedavg"})
    grid = InProcessGrid(app, config.federation.num_clients, run_config=config.as_dict(), seed=config.seed)
    with redirect_stdout(StringIO()):
        run(config, Asking(grid), BarProgress(Console(file=StringIO())), tmp_path)
    assert lengths == pytest.approx([0.05, 0.05], rel=1e-4)
