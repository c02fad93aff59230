"""FedBABU: a head that never trains, and fine-tuning at the end; with that of heads it is PHSFL uncut."""

import pytest
import torch
from flwr.app import ArrayRecord

from espalier.app.algorithms.fedbabu import TUNED
from espalier.app.algorithms.fedper import head_names
from espalier.app.config.unused import unused_keys
from espalier.strategies.exchange import converse
from espalier.strategies.split import FineTuning
from espalier.strategies.views import MemberGrid
from tests.app.algorithms.plain import Clients
from tests.app.algorithms.plain_personal import fedbabu, fine_tuned, loss
from tests.app.assembling import config_of, engine_of, federation_of
from tests.app.runs import kept_of, lines, run_app, summary, weights

SMALL = {"num-clients": 4, "local-epochs": 1, "batches-per-epoch": 2, "global-rounds": 3, "alpha": 0.3}
SMALL |= {"fine-tune.steps": 3, "fine-tune.rate": 0.2}
TWO = {"num-edges": 2, "edge-rounds": 2}
WITH_MEMORY = {"train.momentum": 0.9, "train.weight-decay": 0.01}


def losses(folder):
    (line,) = lines(folder, "personalised")
    return [client["loss"] for client in line["clients"].values()]


@pytest.mark.parametrize("tunes", ["head", "all"])
@pytest.mark.parametrize("tiers", [WITH_MEMORY, TWO], ids=["one tier", "two tiers"])
def test_models_are_those_of_plain_pytorch(tiers, tunes, tmp_path):
    settings = {"algorithm": "fedbabu", **SMALL, **tiers, "fedbabu.tunes": tunes}
    folder = run_app(tmp_path / "run", **settings)
    clients = Clients(config_of(**settings))
    edges = [[0, 1], [2, 3]] if "num-edges" in tiers else [[0, 1, 2, 3]]
    head = head_names(clients.model)
    expected = fedbabu(clients, edges, 3, tiers.get("edge-rounds", 1), head)
    torch.testing.assert_close(weights(folder), expected, rtol=0, atol=1e-6)
    names = head if tunes == "head" else None
    own = [fine_tuned(clients, i, expected, 3, 0.2, names) for i in range(4)]
    torch.testing.assert_close(tuned(config_of(**settings), weights(folder)), own, rtol=0, atol=1e-6)
    assert losses(folder) == pytest.approx([loss(clients, i, state) for i, state in enumerate(own)], abs=1e-6)
    assert summary(folder)["personalised"]["loss"]["mean"] == pytest.approx(sum(losses(folder)) / 4)


def tuned(config, model):
    """Return what clients make of a trained model, and keep."""
    grid = engine_of(config).grid
    hierarchical, how = federation_of(config, grid).hierarchical, FineTuning(3, 0.2)
    members = {name: MemberGrid(grid, nodes) for name, nodes in hierarchical.topology.items()}
    edges = hierarchical.edges.items()
    converse(grid, {name: edge.personalise(ArrayRecord(model), how, members[name]) for name, edge in edges})
    return [kept[TUNED] for kept in kept_of(grid.state_dict())]


def test_it_is_phsfl_uncut(tmp_path):
    uncut = run_app(tmp_path / "uncut", algorithm="fedbabu", **SMALL, **TWO, **WITH_MEMORY)
    phsfl = run_app(tmp_path / "phsfl", algorithm="phsfl", **SMALL, **TWO, **WITH_MEMORY, cut_layer=1)
    torch.testing.assert_close(weights(uncut), weights(phsfl), rtol=0, atol=1e-6)
    assert losses(uncut) == pytest.approx(losses(phsfl), abs=1e-6)
    final = [summary(folder)["global"]["loss"]["mean"] for folder in (uncut, phsfl)]
    assert final[0] == pytest.approx(final[1], abs=1e-6)


def test_no_head_is_in_a_message_nor_trains(tmp_path):
    folder = run_app(tmp_path / "run", algorithm="fedbabu", **SMALL, **WITH_MEMORY)
    start = Clients(config_of(algorithm="fedbabu", **SMALL)).start()
    stayed = {name for name, w in weights(folder).items() if torch.equal(w, start[name])}
    assert stayed == {"head.weight", "head.bias"}
    body = sum(w.nbytes for name, w in start.items() if name not in stayed)
    head = sum(start[name].nbytes for name in stayed)
    for way in ("uplink", "downlink"):  # of 4 clients in 3 rounds; an array has a header
        assert 12 * body < summary(folder)["bytes_by_kind"]["cloud"][way]["model"] < 12 * (body + head)


def test_clients_side_by_side_learn_what_each_learns_alone(tmp_path):
    every = {"algorithm": "fedbabu", **SMALL, **WITH_MEMORY}
    alone, stacked = run_app(tmp_path / "alone", **every), run_app(tmp_path / "stacked", **every, stack=4)
    torch.testing.assert_close(weights(stacked), weights(alone), rtol=0, atol=1e-5)
    assert losses(stacked) == pytest.approx(losses(alone), abs=1e-5)


def test_without_steps_nobody_tunes_and_the_rate_has_no_use(tmp_path):
    settings = {"algorithm": "fedbabu", **SMALL, "fine-tune.steps": 0, "global-rounds": 1, "num-edges": 0}
    assert lines(run_app(tmp_path / "run", **settings), "personalised") == []
    assert unused_keys(config_of(**settings)) == {"fine-tune.rate": "fine-tune.steps = 0"}
