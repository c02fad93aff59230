"""Runs in which the clients have the last blocks too, and evaluations that go through the cut."""

import pytest

from espalier.app.command_line import main
from tests.app.runs import lines, run_app, same_weights, summary, weights

SHORT = {"num_clients": 4, "num_edges": 2, "batches_per_epoch": 2, "batch_size": 16, "fine_tune_steps": 2}
U_SHAPED = SHORT | {"cut_layer": "1,2", "tail_layer": "head", "evaluate": "split"}
SGD_AT_SERVER = {"server_optimizer": "sgd", "server_momentum": 0.5}


def figures(folder):
    """Return what a run computed: all of its lines without bytes and times."""
    return [
        {k: v for k, v in line.items() if k not in ("bytes", "closed_form_bits") and "seconds" not in k}
        for scope in ("edge", "global", "personalised")
        for line in lines(folder, scope)
    ]


@pytest.mark.parametrize(("algorithm", "tail"), [("phsfl", "none"), ("hsfl", "head"), ("sfl-v2", "none")])
def test_evaluation_through_the_cut_gives_the_figures_of_the_whole_model(tmp_path, algorithm, tail):
    settings = SHORT | {"algorithm": algorithm, "tail_layer": tail, "global_rounds": 1}
    whole, split = (run_app(tmp_path / way, evaluate=way, **settings) for way in ("whole", "split"))
    assert same_weights(whole, split)
    assert figures(whole) == figures(split)
    counted = [summary(folder)["bytes_by_kind"]["edge"]["uplink"]["evaluation"] for folder in (whole, split)]
    assert counted[1] > 10 * counted[0]  # activations of the test sets come up
    assert (split / "heads.pt").exists() == (tail == "none")


@pytest.mark.parametrize("algorithm", ["sl", "sfl-v2", "phsfl"])
def test_a_u_shaped_run_resumes_to_the_same_bits(tmp_path, algorithm):
    settings = U_SHAPED | {"algorithm": algorithm, "cut_layer": 1, "optimizer": "adam"} | SGD_AT_SERVER
    whole = run_app(tmp_path / "whole", **settings)
    folder = run_app(tmp_path / "run", **settings | {"global_rounds": 1})
    assert main([f"resume={folder}", "global-rounds=2"]) == 0
    assert same_weights(whole, folder)
    assert figures(whole)[-1] == figures(folder)[-1]
    assert set(summary(whole)["bytes_by_kind"]["edge"]["uplink"]) == {
        *("activations", "client-block", "evaluation", "feature-gradient", "metrics")
    }
    assert "closed_form" not in summary(whole)


def test_streams_and_messages_give_the_same_bits(tmp_path):
    settings = U_SHAPED | {"algorithm": "phsfl", "global_rounds": 1}
    by_messages = run_app(tmp_path / "messages", **settings)
    by_streams = run_app(tmp_path / "stream", transport="stream", **settings)
    assert same_weights(by_messages, by_streams)
    assert figures(by_messages) == figures(by_streams)
    kinds = summary(by_streams)["bytes_by_kind"]["edge"]
    assert {"features", "cut-gradient"} < set(kinds["downlink"])
    assert {"activations", "feature-gradient"} < set(kinds["uplink"])


@pytest.mark.parametrize(("algorithm", "edges"), [("phsfl", 2), ("sfl-v1", 0)])
def test_workers_of_ray_give_the_bits_of_one_process(ray_here, tmp_path, algorithm, edges):
    settings = U_SHAPED | {"algorithm": algorithm, "num_edges": edges, "global_rounds": 1}
    here = run_app(tmp_path / "here", **settings)
    there = run_app(tmp_path / "there", engine="ray", ray_workers=2, **settings)
    assert same_weights(here, there)
    assert figures(here) == figures(there)


def test_plans_choose_cuts_in_front_of_the_tail(tmp_path):
    settings = U_SHAPED | {"cut_layer": "best", "selection": "resource-aware", "selected_per_edge": 1}
    folder = run_app(
        tmp_path / "run",
        algorithm="phsfl",
        tail_layer=2,
        global_rounds=1,
        **{k: v for k, v in settings.items() if k != "tail_layer"},
    )
    plans = [plan for line in lines(folder, "edge") for plan in line["plans"]]
    assert {option for plan in plans for option in plan["option"]} == {0}  # there is but one
    assert weights(folder)


def test_labels_of_a_u_shaped_run_have_no_policy(tmp_path, capsys):
    run_app(tmp_path / "run", algorithm="hsfl", label_policy="labels", global_rounds=1, **U_SHAPED)
    expected = "split.label-policy = 'labels' has no effect: with tail-layer = 'head' no label leaves a client"
    assert expected in " ".join(capsys.readouterr().out.split())
