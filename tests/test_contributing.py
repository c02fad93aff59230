"""The three programs in CONTRIBUTING.md are complete, and do what the page says."""

import importlib
import json
import re

import numpy as np
import pytest

from espalier.app.algorithms import Algorithm
from espalier.app.algorithms.registry import ALGORITHMS
from espalier.app.algorithms.strategies import fedavg_of_all
from espalier.app.command_line import main
from espalier.strategies import Hierarchical
from tests.app.runs import ROOT, run_app, same_weights, summary
from tests.strategies.toys import initial, local_step, to_numpy, to_record, toy_grid, toy_topology

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
NAMES = ("contributed_algorithm", "contributed_edge", "contributed_engine")
SMALL = {"num_clients": 4, "batches_per_epoch": 2, "local_epochs": 1, "edge_rounds": 1}


@pytest.fixture(autouse=True, scope="module")
def _modules(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contributed")
    programs = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    for name, program in zip(NAMES, programs, strict=True):
        (folder / f"{name}.py").write_text(program, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


def contributed(name):
    return importlib.import_module(name)


def test_the_files_and_names_that_the_page_speaks_of_are_there():
    paths = set(re.findall(r"`((?:app|tests|docs|strategies)/[\w/]+\.(?:py|md))`", PAGE))
    made = {"app/algorithms/h_median.py", "strategies/cyclic.py"}
    assert {path for path in paths if not (ROOT / path).exists()} == made
    for target in re.findall(r"^make (\w[\w-]*)", PAGE, re.M):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)
    for test in re.findall(r"`(test_\w+\.py)`", PAGE):
        assert (ROOT / "tests/strategies" / test).exists()


def test_the_algorithm_is_its_file_and_a_row_of_the_registry(tmp_path, monkeypatch):
    median = contributed("contributed_algorithm").H_MEDIAN
    monkeypatch.setitem(ALGORITHMS, median.name, median)
    ours = run_app(tmp_path / "ours", algorithm="h-median", **SMALL)
    flowers = run_app(tmp_path / "flowers", algorithm="h-fedavg", edge_strategy="FedMedian", **SMALL)
    assert same_weights(ours, flowers)
    assert not same_weights(ours, run_app(tmp_path / "mean", algorithm="h-fedavg", **SMALL))
    assert summary(ours)["algorithm"] == "h-median"


def cyclic_run(num_clients, faults=None, rounds=2):
    cyclic, grid = contributed("contributed_edge").Cyclic, toy_grid(num_clients, faults=faults)
    strategy = Hierarchical(fedavg_of_all().strategy, lambda *_: cyclic(fedavg_of_all()), toy_topology(grid, 1))
    return list(strategy.rounds(grid, to_record(initial()), num_rounds=rounds))


def one_after_the_other(clients, rounds=2):
    weights = initial()
    for number in range(1, rounds + 1):
        for client in clients:
            weights = local_step(weights, client, number)
    return weights


@pytest.mark.parametrize("fault", [None, "raise", "nan", "shape", "no weight", "no arrays", "two arrays"])
def test_the_edge_passes_a_model_on_past_whoever_fails(fault):
    *_, last = cyclic_run(3, {1: fault} if fault else {})
    expected = one_after_the_other([0, 2] if fault else [0, 1, 2])
    for name, values in to_numpy(last.arrays).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-6)
    (update,) = last.edges["edge-0"].updates
    assert (len(update.participants), len(update.failures)) == ((2, 1) if fault else (3, 0))
    assert update.weight == (10 + 24 if fault else 10 + 17 + 24)


def test_the_edge_without_any_client_that_trains_has_no_model():
    (only,) = cyclic_run(2, {0: "nan", 1: "raise"}, rounds=1)
    assert only.edges["edge-0"].arrays is None


def cyclic_edge(site):
    return contributed("contributed_edge").Cyclic(fedavg_of_all())


CYCLIC = Algorithm("cyclic", "", cyclic_edge)


def test_the_edge_serves_an_algorithm_that_is_resumed_to_the_bit(tmp_path):
    straight = run_app(tmp_path / "straight", algorithm=f"{__name__}:CYCLIC", **SMALL)
    stopped = run_app(tmp_path / "stopped", algorithm=f"{__name__}:CYCLIC", global_rounds=1, **SMALL)
    assert main([f"resume={stopped}", "global-rounds=2"]) == 0
    assert same_weights(straight, stopped)


@pytest.mark.parametrize("algorithm", ["h-fedavg", "phsfl"])
def test_the_engine_gives_the_bits_of_the_built_in_one(algorithm, tmp_path):
    here = run_app(tmp_path / "here", algorithm=algorithm, **SMALL)
    named = "contributed_engine:PLAIN"
    assert same_weights(here, run_app(tmp_path / "plain", algorithm=algorithm, engine=named, **SMALL))
    assert json.loads((tmp_path / "plain/config.json").read_text())["engine"] == named
