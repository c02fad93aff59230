"""The tables of leaks in the docs are those of the recorded runs, and a leak is found where there is one."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from espalier.clients.messages.split_names import ACTIVATIONS, CUT_GRADIENT, FEATURE_GRADIENT, FEATURES
from experiments import privacy
from experiments.records import read_rows

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "docs/data/privacy.csv"
SHORT = {"num-clients": 2, "global-rounds": 2, "edge-rounds": 1, "batches-per-epoch": 3}


def generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("setting", privacy.SETTINGS)
def test_the_tables_of_the_docs_are_those_of_the_recorded_runs(setting, capsys):
    privacy.print_tables(setting, read_rows(RECORDED, privacy.COLUMNS))
    text = (ROOT / "docs/privacy-measured.md").read_text()
    parts = capsys.readouterr().out.split("\n\n")
    tables = [part for part in parts if part.startswith("|")]
    assert tables
    assert [table for table in tables if table.strip() not in text] == []
    known = [line for part in parts for line in part.splitlines() if line.startswith("pixels ")]
    assert known
    assert [line for line in known if f"({line}):" not in text] == []
    assert [part for part in parts if part.startswith("The figures of ") and f"\n{part.strip()}\n" not in text] == []


@pytest.mark.parametrize("setting", privacy.SETTINGS)
def test_all_runs_are_recorded(setting):
    found = [privacy.case_of(row) for row in read_rows(RECORDED, privacy.COLUMNS) if row["setting"] == setting]
    assert set(found) == set(privacy.cases(setting, privacy.SEEDS))


def test_neighbours_of_clusters_agree_and_those_of_noise_do_by_chance():
    labels = torch.arange(300) % 3
    draw = generator()
    noise = torch.randn(300, 4, 5, generator=draw)
    clusters = 100 * one_hot(labels, 20).view(300, 4, 5) + noise
    assert privacy.neighbours_agree(clusters, labels) == 1.0
    # Also where their lengths differ, as those of gradients do.
    assert privacy.neighbours_agree(clusters * torch.rand(300, 1, 1, generator=draw), labels) == 1.0
    assert privacy.neighbours_agree(noise, labels) == pytest.approx(0.33, abs=0.06)
    assert privacy.chance(labels) == pytest.approx(99 / 299)
    assert privacy.chance(torch.tensor([0, 0, 1, 1])) == pytest.approx(1 / 3)


def test_no_sample_is_its_own_neighbour():
    assert privacy.neighbours_agree(torch.eye(2), torch.tensor([0, 1])) == 0.0


@pytest.mark.parametrize("tail", [nn.Linear(6, 5), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))])
def test_whoever_has_the_tail_finds_the_labels(tail):
    with torch.no_grad():
        for weight in tail.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator()))
    features = torch.randn(40, 6, generator=generator(), requires_grad=True)
    labels = torch.randint(0, 5, (40,), generator=generator())
    (gradients,) = torch.autograd.grad(cross_entropy(tail(features), labels), features)
    assert torch.equal(privacy.tried_labels(tail, features, gradients, 5), labels)
    other = torch.randn(gradients.shape, generator=generator())
    assert (privacy.tried_labels(tail, features, other, 5) == labels).double().mean() < 0.5


def test_what_a_linear_map_gives_back():
    inputs = torch.randn(200, 2, 4, generator=generator())
    mixed = inputs.flatten(1) @ torch.randn(8, 12, generator=generator())
    assert privacy.rebuilt(mixed[:100], inputs[:100], mixed[100:], inputs[100:]) > 0.98
    noise = torch.randn(200, 12, generator=generator())
    assert privacy.rebuilt(noise[:100], inputs[:100], noise[100:], inputs[100:]) == 0.0


def test_a_head_names_the_class_that_there_is_most_of():
    head = nn.Linear(6, 5)
    labels = torch.tensor([3, 3, 3, 1, 0, 4, 3, 2])
    cross_entropy(head(torch.randn(8, 6, generator=generator())), labels).backward()
    before = {f"head.{name}": weights.detach().clone() for name, weights in head.named_parameters()}
    after = {f"head.{name}": (weights - 0.1 * weights.grad).detach() for name, weights in head.named_parameters()}
    assert privacy.commonest_class(before, after) == 3


def case(algorithm, tail="none", cut=1):
    return privacy.Case("digits", algorithm, cut, tail, privacy.RANDOM, 0)


@pytest.mark.parametrize(
    ("tail", "names"),
    [("none", {ACTIVATIONS, CUT_GRADIENT}), ("head", {ACTIVATIONS, FEATURES, FEATURE_GRADIENT, CUT_GRADIENT})],
)
def test_all_that_travels_of_a_round_is_seen(tail, names):
    observer = privacy.observed(case("phsfl", tail).run_config | SHORT, privacy.with_random_labels)
    assert list(observer.rounds) == [1, 2]
    for seen in observer.rounds[2].values():
        assert set(seen.tensors) == names
        assert all(set(by_step) == {0, 1, 2} for by_step in seen.tensors.values())
        assert len(seen.values(ACTIVATIONS)) == len(seen.labels) == len(seen.pixels) == 48
        if tail == "head":  # frozen: the edge has just the weights that the client computed with
            assert privacy.found_by_trying(seen, "float32") == 1.0


def test_rows_of_a_run():
    rows = privacy.rows_of_run(case("hsfl", "head"), **SHORT)
    assert all(row.keys() == set(privacy.COLUMNS) for row in rows)
    assert {row["payload"] for row in rows} == set(privacy.PAYLOADS)
    assert {privacy.case_of(row) for row in rows} == {case("hsfl", "head")}
    whole = replace(case("fedavg", cut=0), labels=privacy.OWN)
    assert [row["measure"] for row in privacy.rows_of_run(whole, **SHORT)] == [privacy.COMMONEST] * 2


def test_a_run_that_has_rows_is_not_made_again(tmp_path, monkeypatch, capsys):
    made = []

    def rows_of_run(case, **changes):
        if len(made) == 3:
            made.append(None)
            raise KeyboardInterrupt
        made.append(case)
        row = dict.fromkeys(privacy.COLUMNS, 0) | vars(case)
        what = (privacy.PIXELS, privacy.NEIGHBOUR) if case.cut else (privacy.UPDATE, privacy.COMMONEST)
        row |= dict(zip(("what", "measure"), what, strict=True)) | {"payload": "float32"}
        return [row | {"round": when, "share": 0.5, "chance": 0.1} for when in (privacy.FIRST, privacy.LAST)]

    monkeypatch.setattr(privacy, "rows_of_run", rows_of_run)
    command = ["--csv", str(tmp_path / "runs.csv"), "--seeds", "4"]
    with pytest.raises(KeyboardInterrupt):
        privacy.main(command)
    assert privacy.main(command) == 0
    assert made[:3] + made[4:] == list(privacy.cases("digits", [4]))
    assert "| fedavg | 50, 50 | 10 |" in capsys.readouterr().out
