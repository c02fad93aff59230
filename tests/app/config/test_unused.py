"""Settings that were given and that a run has no use for are named, and no others."""

import pytest

from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.config.parse import parse_config
from espalier.app.config.together import falling_short
from espalier.app.config.unused import unused_keys
from tests.app.runs import run_app

EDGE = {"deploy.role": "edge", "deploy.edge-name": "west", "deploy.edge-folder": "/x", "deploy.edge-clients": 2}
CHEAPEST = {"algorithm": "rawhfl", "plan.solver": "cheapest-at-full-power"}


@pytest.mark.parametrize(
    ("given", "key", "reason"),
    [
        ({"algorithm": "fedavg", "edge-strategy": "Krum"}, "edge-strategy", "algorithm = 'fedavg' has no edges"),
        ({"algorithm": "fedavg", "edge-rounds": 5}, "edge-rounds", "algorithm = 'fedavg' has no edges"),
        ({"algorithm": "h-fedavg", "cut-layer": 2}, "cut-layer", "algorithm = 'h-fedavg' cuts no model"),
        ({"algorithm": "h-fedavg", "tail-layer": "head"}, "tail-layer", "algorithm = 'h-fedavg' cuts no model"),
        ({"algorithm": "fedavg", "split.evaluate": "whole"}, "split.evaluate", "algorithm = 'fedavg' cuts no model"),
        ({"algorithm": "fedavg", "fine-tune.steps": 3}, "fine-tune.steps", "algorithm = 'fedavg' fine-tunes no models"),
        ({"algorithm": "hsfl", "split.server-order": "one-by-one"}, "split.server-order", "a server block for each"),
        ({"algorithm": "sl", "split.server-order": "one-by-one"}, "split.server-order", "an order of its own"),
        ({"algorithm": "hsfl", "stream.payload": "int8"}, "stream.payload", "see split.transport"),
        ({"plan.theta": 0.1}, "plan.theta", "no round is planned: see selection"),
        ({"radio.fading": "static"}, "radio.fading", "no round is planned: see selection"),
        ({"algorithm": "h-fedavg-m1", "plan.selected-per-edge": 1}, "plan.selected-per-edge", "a rule of its own"),
        ({"algorithm": "rawhfl", "plan.value-weight": 2.0}, "plan.value-weight", "plan.value = 'uniform'"),
        ({"algorithm": "rawhfl", "plan.solver": "random", "plan.value": "age"}, "plan.value", "plan.solver = 'random'"),
        (CHEAPEST | {"plan.value": "age"}, "plan.value", "plan.solver = 'cheapest-at-full-power'"),
        (CHEAPEST | {"plan.theta": 0.1}, "plan.theta", "plan.solver = 'cheapest-at-full-power'"),
        (CHEAPEST | {"plan.min-frequency-hz": 1e9}, "plan.min-frequency-hz", "plan.solver = 'cheapest-at-full-power'"),
        (CHEAPEST | {"plan.solver": "oort(window=5)", "plan.max-overlap": 1}, "plan.max-overlap", "'oort(window=5)'"),
        (CHEAPEST | {"plan.solver": "tifl", "plan.value": "age"}, "plan.value", "plan.solver = 'tifl'"),
        (CHEAPEST | {"plan.solver": "fedcs", "plan.spare": 1}, "plan.spare", "plan.solver = 'fedcs'"),
        ({"algorithm": "h-fedavg-m2", "plan.battery-joules": 2.0}, "plan.battery-joules", "has a rule of its own"),
        ({"algorithm": "rawhfl", "plan.resources": "measured", "plan.spare": 1}, "plan.spare", "waits for all"),
        ({"algorithm": "h-fedavg-m1", "plan.spare": 1}, "plan.spare", "'h-fedavg-m1' has a rule of its own"),
        ({"algorithm": "rawhfl", "plan.late-share": 0.05}, "plan.late-share", "planning-error-db = 0.0 nobody is late"),
        (
            {"algorithm": "rawhfl", "plan.resources": "measured", "plan.late-share": 0.05},
            "plan.late-share",
            "the error of measured links is not known",
        ),
        ({"algorithm": "fedavg-ub", "plan.margin": 0.2}, "plan.margin", "algorithm = 'fedavg-ub' keeps no deadline"),
        ({"algorithm": "fedavg-ub", "plan.deadline-seconds": 9.0}, "plan.deadline-seconds", "and nobody walks"),
        ({"algorithm": "h-fedavg-m2", "plan.theta": 0.9}, "plan.theta", "has a rule of its own"),
        ({"algorithm": "h-fedavg-m1", "plan.min-frequency-hz": 1e8}, "plan.min-frequency-hz", "has a rule of its own"),
        (
            {"algorithm": "rawhfl", "plan.resources": "measured", "radio.bandwidth-hz": 1e6},
            "radio.bandwidth-hz",
            "links are measured",
        ),
        ({"algorithm": "hsfl", "fine-tune.steps": 0, "fine-tune.rate": 0.5}, "fine-tune.rate", "fine-tune.steps = 0"),
        (
            {"algorithm": "hsfl", "split.server-optimizer": "adam", "split.server-momentum": 0.9},
            "split.server-momentum",
            "split.server-optimizer = 'adam'",
        ),
        ({"algorithm": "centralised", "participation": 0.5}, "participation", "trains no clients"),
        ({"algorithm": "fedavg-ub", "plan.divide-by-arrived": True}, "plan.divide-by-arrived", "keeps no deadline"),
        (
            {"algorithm": "h-fedavg", "selection": "resource-aware", "plan.divide-by-arrived": True},
            "plan.divide-by-arrived",
            "edges of algorithm = 'h-fedavg' add up no gradients",
        ),
        ({"caching.initial-slots": 7}, "caching.initial-slots", "dataset = 'digits'"),
        ({"dataset": "video-caching", "alpha": 0.1}, "alpha", "dataset = 'video-caching' is simulated"),
        ({"engine": "in-process", "deploy.nodes-move": True}, "deploy.nodes-move", "no node has a config that changes"),
        ({"engine": "in-process", "num-edges": 2, "edge-names": "a,b"}, "edge-names", "named by their numbers"),
        ({"engine": "ray", "deploy.wait-for-nodes": 9}, "deploy.wait-for-nodes", "clients are there from the start"),
        ({"algorithm": "local", "edge-strategy": "FedMedian"}, "edge-strategy", "local averages nothing"),
        (
            {"algorithm": "rawhfl", "local-epochs": 7, "plan.max-local-rounds": 3},
            "local-epochs",
            "plan.max-local-rounds says how many",
        ),
        ({"engine": "ray", "deploy.reply-timeout": 9}, "deploy.reply-timeout", "with engine = 'ray' nobody is late"),
        ({"partition": "iid", "alpha": 0.1}, "alpha", "partition = 'iid'"),
        ({"data.shards-per-client": 3}, "data.shards-per-client", "partition = 'dirichlet'"),
        ({"train.schedule": "cosine", "global-rounds": 1}, "train.schedule", "global-rounds = 1"),
        ({"train.cuda-graph": True, "device": "cpu"}, "train.cuda-graph", "device = 'cpu'"),
        (
            {"train.cuda-graph": True, "deploy.role": "cloud", "num-edges": 2},
            "train.cuda-graph",
            "'cloud' trains nobody",
        ),
        (EDGE | {"report.tracker": "tensorboard"}, "report.tracker", "the cloud's run reports"),
        (EDGE | {"report.group": "mine"}, "report.group", "the cloud's run reports"),
        (EDGE | {"report.plots": False}, "report.plots", "the cloud's run reports"),
        (EDGE | {"edge-names": "west,east"}, "edge-names", "devices may name deploy.edge-name"),
        ({"train.cuda-graph": True, "algorithm": "sfl-v1"}, "train.cuda-graph", "'sfl-v1' trains no whole model"),
        ({"train.cuda-graph": True, "engine": "in-process", "stack": 4}, "train.cuda-graph", "train side by side"),
        ({"async.mode": "semi-synchronous", "async.staleness": "constant"}, "async.staleness", "no update is late"),
        ({"async.mode": "semi-synchronous", "async.max-staleness": 2}, "async.max-staleness", "no update is late"),
        ({"optimizer": "adam", "train.momentum": 0.9}, "train.momentum", "optimizer = 'adam'"),
        ({"algorithm": "hsfl", "optimizer": "adam", "train.momentum": 0.9}, "train.momentum", "optimizer = 'adam'"),
        (
            {"algorithm": "hsfl", "optimizer": "adam", "split.server-optimizer": "sgd", "split.server-momentum": 0.5}
            | {"train.momentum": 0.9},
            "train.momentum",
            "optimizer = 'adam'",
        ),
        ({"algorithm": "hsfl-feddyn", "engine": "in-process", "stack": 3}, "stack", "'hsfl-feddyn' corrects the steps"),
        (
            {"algorithm": "hsfl", "engine": "in-process", "stack": 3, "edge-strategy": "FedProx(proximal_mu=0.1)"},
            "stack",
            "FedProx pulls the steps",
        ),
        (
            {"algorithm": "cse-fsl", "split.upload-every": 0, "split.server-optimizer": "adam"},
            "split.server-optimizer",
            "split.upload-every = 0",
        ),
        ({"algorithm": "fsl-sage", "fsl-sage.fit-every": 0, "fsl-sage.fit-rate": 0.1}, "fsl-sage.fit-rate", "every"),
        ({"algorithm": "fsl-sage", "split.upload-every": 0, "fsl-sage.fit-every": 3}, "fsl-sage.fit-every", "upload"),
        ({"algorithm": "fedbabu", "fine-tune.steps": 0, "fedbabu.tunes": "all"}, "fedbabu.tunes", "steps = 0"),
        ({"algorithm": "local", "num-edges": 2, "compress.edge": "int8"}, "compress.edge", "'local' have no updates"),
        (
            {"algorithm": "top-popular", "dataset": "video-caching", "learning-rate": 1.0},
            "learning-rate",
            "algorithm = 'top-popular' trains nothing",
        ),
    ],
)
def test_a_setting_without_use_is_named_with_the_reason(given, key, reason):
    unused = unused_keys(parse_config(given))
    assert list(unused) == [key]
    assert reason in unused[key]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dataset", ["digits", "video-caching"])
def test_defaults_are_never_named(algorithm, dataset):
    if ALGORITHMS[algorithm].ranks_requests and dataset != "video-caching":
        return
    assert unused_keys(parse_config({"algorithm": algorithm, "dataset": dataset})) == {}


@pytest.mark.parametrize(
    "given",
    [
        {"algorithm": "sl", "num-edges": 2, "edge-rounds": 3, "cut-layer": 2},
        {"algorithm": "fedavg", "selection": "resource-aware", "num-edges": 3, "plan.theta": 0.1},
        {"algorithm": "fedavg", "dataset": "video-caching", "edge-rounds": 4, "caching.initial-slots": 7},
        {"algorithm": "sfl-v2", "split.server-order": "one-by-one", "split.transport": "stream", "stream.timeout": 9.0},
        {"algorithm": "rawhfl", "plan.resources": "measured", "stream.timeout": 9.0, "plan.margin": 0.1},
        {"algorithm": "hsfl", "optimizer": "adam", "split.server-optimizer": "sgd", "train.momentum": 0.9},
        {
            "algorithm": "hsfl",
            "engine": "in-process",
            "stack": 3,
            "edge-strategy": "FedProx",
        },  # by default it pulls by 0
        {"algorithm": "h-fedavg", "engine": "in-process", "stack": 3, "edge-strategy": "FedProx(proximal_mu=0.1)"},
        {"algorithm": "rawhfl", "plan.late-share": 0.05, "radio.planning-error-db": 1.0, "plan.margin": 0.1},
        {"algorithm": "rawhfl", "plan.value": "battery", "plan.battery-joules": 1.0, "plan.value-weight": 3.0},
    ],
)
def test_settings_with_a_use_are_not_named(given):
    assert unused_keys(parse_config(given)) == {}


def test_a_run_warns_once(tmp_path, caplog):
    run_app(tmp_path / "run", algorithm="fedavg", edge_strategy="Krum", num_clients=2, batches_per_epoch=1)
    warned = [record.getMessage() for record in caplog.records if "has no effect" in record.getMessage()]
    assert warned == ["edge-strategy = 'Krum' has no effect: algorithm = 'fedavg' has no edges"]


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"algorithm": "fedavg", "num-clients": 7, "cloud-strategy": "Krum(num_malicious_nodes=2)"}, None),
        ({"algorithm": "fedavg", "num-clients": 6, "cloud-strategy": "Krum(num_malicious_nodes=2)"}, 1),
        ({"algorithm": "fedavg", "num-clients": 6, "cloud-strategy": "MultiKrum(num_malicious_nodes=2)"}, 1),
        ({"algorithm": "fedavg", "num-clients": 2, "cloud-strategy": "Krum"}, None),  # which promises nothing
        ({"algorithm": "scaffold", "num-clients": 7, "edge-strategy": "Krum(num_malicious_nodes=2)"}, None),
        ({"algorithm": "scaffold", "num-clients": 6, "edge-strategy": "Krum(num_malicious_nodes=2)"}, 1),
        ({"num-clients": 9, "num-edges": 2, "edge-strategy": "Krum(num_malicious_nodes=1)"}, 0),  # an edge has 4 or 5
        ({"num-clients": 10, "num-edges": 2, "edge-strategy": "Krum(num_malicious_nodes=1)"}, None),
        ({"num-clients": 10, "participation": 0.9, "edge-strategy": "Krum(num_malicious_nodes=1)"}, 0),
        ({"num-clients": 10, "num-edges": 2, "cloud-strategy": "Krum(num_malicious_nodes=1)"}, 0),
    ],
)
def test_krum_with_too_few_nodes_for_the_malicious_ones_is_named(settings, most):
    reasons = falling_short(parse_config(settings))
    if most is None:
        assert reasons == {}
    else:
        ((key, reason),) = reasons.items()
        assert key in settings
        assert reason.endswith(f"with them num_malicious_nodes is at most {most}")
