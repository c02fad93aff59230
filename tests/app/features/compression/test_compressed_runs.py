"""Runs whose updates go up compressed: wherever clients run, against a reference, and with liars among them."""

import logging
from math import ceil

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from espalier.app.command_line import main
from espalier.app.wiring.clients import client_task
from espalier.clients.client_app import make_client_app
from espalier.clients.randomness import client_generator
from espalier.clients.shared.compression import Float16
from espalier.strategies.randomness import derived_seed
from tests.app.algorithms.plain import Clients
from tests.app.assembling import build_task, config_of, engine_of, federation_of
from tests.app.runs import lines, run_app, same_weights, summary, weights

SMALL = {"num-clients": 4, "num-edges": 2, "edge-rounds": 2, "local-epochs": 1, "batches-per-epoch": 2}
BOTH = {"compress.client": "top-k(share=0.1)", "compress.edge": "qsgd(levels=7)"}
TWO_MODELS = "tests.strategies.split.test_own_strategy:TwoModels"
FEEDBACK = {"compress.client": "top-k(share=0.1)", "compress.edge": "top-k(share=0.2)"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return run_app(tmp_path_factory.mktemp("plain") / "run", **SMALL)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return run_app(tmp_path_factory.mktemp("both") / "run", **SMALL, **BOTH)


BYTES = {  # of an array of n values, as the docs' page has them: 15 levels are told by 4 bits, 3 by 2
    "float16": lambda n: 2 * n,
    "int8": lambda n: n + 4,
    "qsgd(levels=7)": lambda n: ceil(4 * n / 8) + 4 * ceil(n / 512),
    "qsgd(levels=1, bucket=100)": lambda n: ceil(2 * n / 8) + 4 * ceil(n / 100),
    "top-k(share=0.1)": lambda n: 6 * ceil(0.1 * n),
}


def test_all_of_top_k_is_the_plain_run_to_the_bit(plain, tmp_path):
    every = "top-k(share=1.0)"
    found = run_app(tmp_path / "all", **SMALL, **{"compress.client": every, "compress.edge": every})
    assert same_weights(plain, found)


def test_where_nobody_sends_updates_the_bytes_are_those_without_it(tmp_path):
    found = [
        run_app(tmp_path / name, algorithm="local", **SMALL, **codecs) for name, codecs in (("a", {}), ("b", BOTH))
    ]
    plain, both = (lines(folder, "global")[-1]["bytes"] for folder in found)
    assert plain == both
    assert plain["edge"]["uplink"]["model"] == 0


@pytest.mark.parametrize("codec", BYTES)
def test_bytes_are_those_that_travel(codec, plain, tmp_path):
    settings = {**SMALL, "compress.client": codec, "compress.edge": codec}
    found = run_app(tmp_path / "found", **settings)
    assert not same_weights(plain, found)
    header = 128  # NumPy's
    data = header + sum(BYTES[codec](own.numel()) for own in weights(found).values())
    (last, before) = (lines(found, "global")[-1], lines(plain, "global")[-1])
    up = {tier: own["uplink"]["model"] for tier, own in last["bytes"].items()}
    size = data + len("compressed")
    assert up == {"edge": 8 * size, "cloud": 2 * size}  # a global round: 4 clients twice, 2 edges once
    down = [{tier: own["downlink"] for tier, own in line["bytes"].items()} for line in (last, before)]
    assert down[0] == down[1]
    sent = []

    def answer(message, context):
        reply = make_client_app(client_task)(message, context)
        sent.extend(len(array.data) for array in reply.content.array_records.get("compressed", {}).values())
        return reply

    last_model(config_of(**settings), answer, 1)
    assert sent == 8 * [data]


def by_top_k(u, draws, share):
    places = np.argsort(-np.abs(u), kind="stable")[: max(1, int(np.ceil(share * u.size)))]
    sent = np.zeros_like(u)
    sent[places] = u[places]
    return sent


def by_qsgd(u, draws, levels, bucket=512):
    v, width = u.astype(np.float64), min(bucket, u.size)
    uniform = torch.rand(-(-v.size // width), width, generator=draws, dtype=torch.float64).numpy()
    q = np.zeros_like(v)
    for b, k in enumerate(range(0, v.size, width)):
        part, exact = v[k : k + width], np.linalg.norm(v[k : k + width])
        norm = np.float32(exact)  # as it travels: rounded up
        norm = float(norm if norm >= exact else np.nextafter(norm, np.float32(np.inf)))
        if norm:  # of zeros, zeros are sent
            r = levels * np.abs(part) / norm
            xi = np.floor(r) + (uniform[b, : part.size] < r - np.floor(r))
            q[k : k + width] = norm * np.sign(part) * xi / levels
    return q


def by_int8(u, draws):
    scale = np.abs(u).max() / 127
    return np.round(u / scale) * scale


def by_float16(u, draws):
    return u.astype(np.float16)


def written(how):
    """Return a codec as it is set."""
    name = how[0].__name__.removeprefix("by_").replace("_", "-")
    return f"{name}({', '.join(f'{key}={value}' for key, value in how[1].items())})"


@pytest.mark.parametrize(
    ("client", "edge"),
    [
        ((by_top_k, {"share": 0.1}), (by_qsgd, {"levels": 7})),
        ((by_qsgd, {"levels": 7}), (by_qsgd, {"levels": 3, "bucket": 64})),
        ((by_int8, {}), (by_float16, {})),
    ],
    ids=["top-k, qsgd", "qsgd, qsgd", "int8, float16"],
)
def test_two_tiers_that_compress_are_a_plain_reference(client, edge, tmp_path):
    config = config_of(**{key.replace("-", "_"): value for key, value in SMALL.items()})
    clients, left, seed = Clients(config), [{} for _ in range(4)], config.seed

    def sent(how, x, w, draws, errors=None):
        """Return what arrives of w; where errors are given, what was left out of it is kept in them."""
        (by, numbers), got = how, {}
        for name in sorted(x):
            u = (w[name] - x[name]).numpy().ravel()
            u = u if errors is None else u + errors.get(name, 0.0)
            told = by(u, draws, **numbers).astype(u.dtype)
            if errors is not None:
                errors[name] = u - told
            got[name] = x[name] + torch.from_numpy(told.reshape(x[name].shape))
        return got

    def from_client(i, number, x):
        draws = client_generator(seed, i, number, "compression")
        return sent(client, x, clients.train(i, x, number), draws, left[i] if client[0] is by_top_k else None)

    model, edges = clients.start(), ([0, 1], [2, 3])
    for t in (1, 2):
        made = []
        for j, members in enumerate(edges):
            own = model
            for e in (1, 2):
                own = clients.average({i: from_client(i, 2 * (t - 1) + e, own) for i in members}, members)
            draws = torch.Generator().manual_seed(derived_seed(seed, "compression", f"edge-{j}", t))
            made.append(sent(edge, model, own, draws))
        sizes = [sum(clients.weights(members)) for members in edges]
        shares = [size / sum(sizes) for size in sizes]
        model = {name: sum(m[name] * share for m, share in zip(made, shares, strict=True)) for name in model}
    found = weights(
        run_app(
            tmp_path / "run",
            **SMALL,
            **{f"compress.{tier}": written(how) for tier, how in (("client", client), ("edge", edge))},
        )
    )
    assert max(float((found[name] - model[name]).abs().max()) for name in model) < 1e-6


@pytest.mark.parametrize("settings", [BOTH, FEEDBACK], ids=["both", "feedback"])
def test_a_resumed_run_goes_on_with_what_was_left_out(settings, tmp_path):
    straight = run_app(tmp_path / "straight", **SMALL, **settings, **{"global-rounds": 3})
    begun = run_app(tmp_path / "begun", **SMALL, **settings, **{"global-rounds": 1})
    assert main([f"resume={begun}", "global-rounds=3"]) == 0
    assert same_weights(straight, begun)


def last_model(config, client_app, rounds=2):
    grid = engine_of(config, client_app=client_app).grid
    *_, last = federation_of(config, grid).hierarchical.rounds(
        grid, ArrayRecord(build_task(config).new_model().state_dict()), rounds
    )
    return last.arrays.to_torch_state_dict()


def test_a_process_for_every_message_gives_the_same_bits(both):
    """As on devices, where what a client knows is what its node's state holds."""
    config = config_of(**SMALL, **BOTH)
    found = last_model(config, lambda message, context: make_client_app(client_task)(message, context))
    expected = weights(both)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.usefixtures("ray_here")
def test_workers_of_ray_give_the_same_bits(both, tmp_path):
    assert same_weights(both, run_app(tmp_path / "ray", **SMALL, **BOTH, engine="ray", ray_workers=2))


@pytest.mark.parametrize("codec", ["float16", "int8", "qsgd(levels=7)", "top-k(share=0.1)"])
def test_clients_side_by_side_send_what_each_sends(codec, tmp_path):
    settings = {**SMALL, "global-rounds": 1, "compress.client": codec}
    alone, together = run_app(tmp_path / "alone", **settings), run_app(tmp_path / "together", **settings, stack=4)
    a, b = weights(alone), weights(together)
    assert max(float((a[name] - b[name]).abs().max()) for name in a) < 1e-5
    assert summary(alone)["bytes"] == summary(together)["bytes"]


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "scaffold"},
        {"algorithm": "fedper", "alpha": 0.3},
        {"algorithm": "fedavg", "async.mode": "fedbuff"},
        {"algorithm": "h-fedavg", "async.mode": "fedbuff"},
        {"edge-strategy": "Krum", "guard.update-norm": 10.0},
        {"train.weighting": "equal", "availability.mode": "markov"},
    ],
    ids=str,
)
def test_beside_other_settings_all_of_top_k_is_the_plain_run(settings, tmp_path):
    """Whatever stands around the seam: halves of algorithms, weights that stay, flights, guards."""
    settings = {**SMALL, **settings, "edge-rounds": 1}
    before = run_app(tmp_path / "before", **settings)
    after = run_app(tmp_path / "after", **settings, **{"compress.client": "top-k(share=1)"})
    assert same_weights(before, after)
    assert summary(after)["replies_left_out"] == 0


@pytest.mark.parametrize("algorithm", ["hsfl", "rawhfl"])
def test_edges_of_split_and_planned_algorithms_send_models_too(algorithm, tmp_path):
    settings = {**SMALL, "algorithm": algorithm, "edge-rounds": 1, "global-rounds": 1, "fine_tune_steps": 0}
    before = run_app(tmp_path / "before", **settings)
    after = run_app(tmp_path / "after", **settings, **{"compress.edge": "top-k(share=1)"})
    assert same_weights(before, after)
    sent = [lines(run, "global")[-1]["bytes"]["cloud"]["uplink"]["model"] for run in (before, after)]
    assert sent[0] != sent[1]


SPLIT = {"num-clients": 4, "local-epochs": 1, "batches-per-epoch": 2, "global-rounds": 2, "fine-tune-steps": 1}
BY_MESSAGES, BY_STREAMS = {"split.transport": "messages"}, {"split.transport": "stream"}


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "sfl-v1"},
        {"algorithm": "sfl-v1", **BY_MESSAGES, "cut-layer": "1,2"},
        {"algorithm": "sfl-v2", **BY_STREAMS},
        {"algorithm": "sl"},
        {"algorithm": "sfl-v1", "stack": 4},
        {"algorithm": "sfl-v1", "tail-layer": "head"},
        {"algorithm": "phsfl", "num-edges": 2, "edge-rounds": 2},
        {"algorithm": "cse-fsl"},
        {"algorithm": "fsl-sage", "fsl-sage.fit-steps": 2},
        {"algorithm": "hsfl-feddyn", "num-edges": 2},
    ],
    ids=str,
)
def test_blocks_of_split_models_are_compressed_too(settings, tmp_path):
    plain = run_app(tmp_path / "plain", **SPLIT, **settings)
    every = run_app(tmp_path / "every", **SPLIT, **settings, **{"compress.client": "top-k(share=1)"})
    assert same_weights(plain, every)
    half = run_app(tmp_path / "half", **SPLIT, **settings, **{"compress.client": "float16"})
    assert not same_weights(plain, half)
    assert max(float((weights(half)[name] - own).abs().max()) for name, own in weights(plain).items()) < 0.01
    assert [summary(run)["replies_left_out"] for run in (every, half)] == [0, 0]
    up, down = ([lines(run, "global")[-1]["bytes"] for run in (plain, half)], "downlink")
    tier = list(up[0])[-1]
    assert up[1][tier]["uplink"]["client-block"] < 0.55 * up[0][tier]["uplink"]["client-block"]
    assert up[1][tier][down] == up[0][tier][down]
    assert {k: v for k, v in up[1][tier]["uplink"].items() if k != "client-block"} == {
        k: v for k, v in up[0][tier]["uplink"].items() if k != "client-block"
    }


CUT = SPLIT | {"algorithm": "hsfl", "num-edges": 2, "compress.client": "top-k(share=0.1)", "global-rounds": 3}


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    return run_app(tmp_path_factory.mktemp("cut") / "run", **CUT)


def test_a_resumed_run_of_split_models_goes_on_with_what_was_left_out(cut, tmp_path):
    begun = run_app(tmp_path / "begun", **CUT | {"global-rounds": 1})
    assert main([f"resume={begun}", "global-rounds=3"]) == 0
    assert same_weights(cut, begun)


def test_split_clients_that_know_nothing_but_their_state_send_the_same_bits(cut):
    config = config_of(**CUT, **BY_MESSAGES)
    grid = engine_of(config, client_app=lambda m, c: make_client_app(client_task)(m, c)).grid
    start = ArrayRecord(build_task(config).new_model().state_dict())
    *_, last = federation_of(config, grid).hierarchical.rounds(grid, start, 3)
    found, expected = last.arrays.to_torch_state_dict(), weights(cut)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def lying(how):
    """Return a ClientApp whose client 2 changes the record of its update."""
    app = make_client_app(client_task)

    def answer(message, context):
        reply = app(message, context)
        if context.node_config["partition-id"] == 2 and "compressed" in reply.content:
            data = np.frombuffer(reply.content["compressed"]["compressed"].data[128:], np.uint8).copy()
            made = how(data)
            del reply.content["compressed"]
            if made is not None:
                reply.content["compressed"] = ArrayRecord({"compressed": Array(made)})
        return reply

    return answer


def overwritten(data, value):
    data[:4] = np.array([value], "<f4").view(np.uint8)
    return data


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (lambda data: data[:-3], "its update is uint8 of shape"),
        (lambda data: np.zeros(10**7, np.uint8), "its update is uint8 of shape (10000000,)"),
        (lambda data: overwritten(data, np.nan), "a scale of its update is negative, NaN or Inf"),
        (lambda data: None, "its reply has no record 'compressed'"),
        (lambda data: overwritten(data, 3e38), "holds NaN or Inf"),
    ],
    ids=["short", "huge", "NaN", "none", "absurd"],
)
def test_who_sends_no_update_is_left_out_by_name_and_said_once(how, reason, caplog):
    config = config_of(algorithm="fedavg", num_clients=4, batches_per_epoch=2, compress_client="int8")
    grid = engine_of(config, client_app=lying(how)).grid
    federation = federation_of(config, grid)
    start = ArrayRecord(build_task(config).new_model().state_dict())
    with caplog.at_level(logging.WARNING):
        (outcome,) = federation.hierarchical.rounds(grid, start, 1)
    (edge,) = outcome.edges.values()
    (failure,) = edge.updates[0].failures
    assert federation.client_of[failure.node_id] == 2
    assert reason in failure.reason
    assert len(edge.updates[0].participants) == 3
    assert sum("client 2 of cloud left out" in record.message for record in caplog.records) == 1


class Broken(Float16):
    """Writes nothing."""

    def encode(self, values, start, draws):
        raise TypeError("no such form")


class Forgetful(Float16):
    """Writes, and returns nothing."""

    def encode(self, values, start, draws):
        super().encode(values, start, draws)


class Counting(Float16):
    """Says how much it writes by no whole number."""

    def num_bytes(self, count, dtype):
        return 2.0 * count


def test_clients_that_get_two_models_are_left_out_and_the_run_says_so(tmp_path, capsys):
    settings = ["algorithm=fedavg", "num-clients=4", "global-rounds=1", "batches-per-epoch=1", "compress.client=int8"]
    assert main([*settings, f"cloud-strategy={TWO_MODELS}", f"output-dir={tmp_path / 'run'}"])
    assert "run: no client trained in any round" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("tier", "what"), [("client", "no client trained in any round"), ("edge", "the cloud made no model in any round")]
)
def test_a_codec_that_fails_leaves_those_out_whose_updates_it_can_not_write(tier, what, tmp_path, capsys, caplog):
    settings = ["algorithm=h-fedavg", "num-clients=4", "global-rounds=1", "batches-per-epoch=1"]
    with caplog.at_level(logging.WARNING):
        assert main([*settings, f"compress.{tier}={__name__}:Broken", f"output-dir={tmp_path / 'run'}"]) == 2
    assert "its update can't be written: TypeError: no such form" in caplog.text
    assert (
        capsys.readouterr().err.splitlines()[-1] == f"error: {tmp_path / 'run'}: {what}; metrics.jsonl has the reasons"
    )
    assert lines(tmp_path / "run", "global")[0].get("made_no_model") is True


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Forgetful", "its update can't be written: TypeError: encode() gave a NoneType, not an array of bytes"),
        ("Counting", "Counting.num_bytes() gives no number of bytes: TypeError"),
    ],
)
def test_a_codec_that_returns_what_is_none_is_no_traceback(name, reason, tmp_path, caplog):
    settings = ["algorithm=fedavg", "num-clients=2", "global-rounds=1", "batches-per-epoch=1"]
    codec = f"compress.client={__name__}:{name}"
    with caplog.at_level(logging.WARNING):
        assert main([*settings, codec, f"output-dir={tmp_path / 'run'}"]) == 2
    assert reason in caplog.text


def test_what_a_codec_draws_follows_client_and_round():
    first, second = (client_generator(0, 0, number, "compression") for number in (1, 2))
    assert not torch.equal(torch.rand(4, generator=first), torch.rand(4, generator=second))
