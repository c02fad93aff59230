"""The PHSFL paper's tables are of the finished runs, each measured once, and the page prints what is recorded."""

import csv
import re
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from espalier.app.comparison.runs import FinishedRun
from espalier.app.ground.errors import UserError
from espalier.app.sweeps.grid import planned_runs, read_sweep
from espalier.strategies.split import FineTuning
from experiments import fine_tuning, phsfl_tables
from experiments.phsfl_tables import PAPER, PAPERS_STEPS, Line, at_the_end, leads_of, main, run_of
from experiments.recorded_runs import read_lines, write_lines
from tests.app.runs import run_app, summary

ROOT = Path(__file__).parents[2]
SHORT = {"num_clients": 4, "global_rounds": 2, "evaluate_every": 1, "partition": "dirichlet", "alpha": 0.5}
A = Line("hsfl", 0.1, 0.01, 5, 0, 5, 0, 0.0, 0.25, 2.0, "abc", "a machine, 2 cores")


def recorded():
    """Return the lines of seed 0, which the page's text is of."""
    return [line for line in read_lines(Line, ROOT / "docs/data/phsfl-runs.csv") if line.seed == 0]


def tables(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["phsfl_tables.py", *map(str, arguments)])
    main()


def test_what_is_recorded_is_read_back_in_order(tmp_path):
    assert read_lines(Line, tmp_path / "none.csv") == []
    later, tuned = A._replace(round=10), A._replace(round=10, steps=10, rate=0.01)
    write_lines(Line, tmp_path / "runs.csv", [tuned, A, later])
    assert read_lines(Line, tmp_path / "runs.csv") == [A, later, tuned]
    assert at_the_end([A, later, tuned]) == [later, tuned]


@pytest.mark.usefixtures("with_png")
def test_a_run_is_measured_once_and_gives_its_own_figures(tmp_path, monkeypatch, capsys):
    settings = [None, FineTuning(10, 0.05)]
    monkeypatch.setattr(fine_tuning, "SETTINGS", settings)
    monkeypatch.setattr(phsfl_tables, "SETTINGS", settings)
    (tmp_path / "few.toml").write_text("num-clients = 4\nglobal-rounds = 2\n")
    monkeypatch.setattr(phsfl_tables, "SETTINGS_FILE", tmp_path / "few.toml")
    split = {"algorithm": "phsfl", "num_edges": 2, "fine_tune_steps": 10, "fine_tune_rate": 0.05}
    run_app(tmp_path / "sweep" / "one", **SHORT, **split)
    run_app(tmp_path / "sweep" / "two", **SHORT, algorithm="centralised")
    capsys.readouterr()
    tables(monkeypatch, tmp_path / "sweep", "--csv", tmp_path / "runs.csv", "--figure", tmp_path / "figure.png")
    lines = read_lines(Line, tmp_path / "runs.csv")
    assert [(line.algorithm, line.round, line.steps) for line in lines] == [
        ("centralised", 1, 0), ("centralised", 2, 0), ("phsfl", 1, 0), ("phsfl", 2, 0), ("phsfl", 2, 10),
    ]  # fmt: skip
    reported = summary(tmp_path / "sweep" / "one")
    assert lines[3].accuracy == reported["global"]["accuracy"]["mean"]
    assert lines[4].loss == pytest.approx(reported["personalised"]["loss"]["mean"], rel=1e-12)
    assert {line.machine for line in lines} != {""}
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert f"{lines[4].accuracy:.4f}" in printed
    assert "Dir(0.5)" in printed

    monkeypatch.setattr(phsfl_tables, "measure", lambda *arguments: pytest.fail("measured again"))
    tables(monkeypatch, tmp_path / "sweep", "--csv", tmp_path / "runs.csv")
    assert read_lines(Line, tmp_path / "runs.csv") == lines
    assert printed.endswith(capsys.readouterr().out)


def test_mean_and_spread_are_over_seeds_beside_the_paper(tmp_path, monkeypatch, capsys):
    runs = [A._replace(round=100, seed=seed, accuracy=accuracy) for seed, accuracy in enumerate((0.5, 0.7))]
    tuned = [line._replace(steps=10, rate=0.01, accuracy=line.accuracy + 0.1) for line in runs]
    write_lines(Line, tmp_path / "runs.csv", [*runs, *tuned])
    tables(monkeypatch, "--csv", tmp_path / "runs.csv")
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["hsfl,", "global", "2", "0.6000", "+-", "0.1000", "0.6606", "2.0000", "+-", "0.0000", "1.0049"] in printed
    assert [
        "hsfl,",
        "K=10",
        "at",
        "0.01",
        "2",
        "0.7000",
        "+-",
        "0.1000",
        "0.7958",
        "2.0000",
        "+-",
        "0.0000",
        "0.6735",
    ] in printed


def test_runs_with_another_learning_rate_or_other_epochs_have_their_own_tables(tmp_path, monkeypatch, capsys):
    paper = A._replace(round=100)
    lines = [paper, A._replace(learning_rate=0.032, round=6, accuracy=0.5), A._replace(batches_per_epoch=0)]
    assert at_the_end(lines) == lines
    write_lines(Line, tmp_path / "runs.csv", lines)
    tables(monkeypatch, "--csv", tmp_path / "runs.csv")
    printed = [table.splitlines() for table in capsys.readouterr().out.strip().split("\n\n")]
    assert [(title, row.split()[:-3]) for title, _, row in printed] == [
        ("Dir(0.1), epochs over all examples", ["hsfl,", "global,", "round", "5", "1", "0.2500"]),
        ("Dir(0.1)", ["hsfl,", "global", "1", "0.2500"]),
        ("Dir(0.1), trained at 0.032", ["hsfl,", "global,", "round", "6", "1", "0.5000"]),
    ]


@pytest.mark.parametrize("algorithm", ["hsfl", "centralised"])
def test_a_run_with_other_settings_is_refused(tmp_path, monkeypatch, algorithm):
    (planned,) = planned_runs(read_sweep([str(phsfl_tables.SETTINGS_FILE), f"algorithm={algorithm}"]))
    ours = planned.settings
    theirs = {"alpha": 0.5, "seed": 2, "dataset": "image-folder", "batches-per-epoch": 0, "global-rounds": 40}
    assert run_of(FinishedRun(tmp_path, {**ours, **theirs}, {}, {})) == (algorithm, 0.5, 0.01, 0, 2)
    run = FinishedRun(tmp_path, ours, {}, {})
    with pytest.raises(UserError, match="global-rounds = 40: allowed is 100"):
        run_of(replace(run, settings={**ours, "global-rounds": 40, "batches-per-epoch": 5}))
    assert run_of(run) == (algorithm, 0.1, 0.01, 5, 0)
    for key, value in (("num-clients", 20), ("batch-size", 8), ("model", "resnet18")):
        with pytest.raises(UserError, match=f"{key} = {value!r}: allowed is .* as in phsfl-cifar10.toml"):
            run_of(replace(run, settings={**ours, key: value}))
    with pytest.raises(UserError, match="algorithm = 'h-fedavg': allowed is "):
        run_of(replace(run, settings={**ours, "algorithm": "h-fedavg"}))


def test_no_lines_and_no_runs_get_one_line(tmp_path, monkeypatch):
    for arguments in ((), (tmp_path / "nothing",)):
        with pytest.raises(SystemExit, match=r"^error: "):
            tables(monkeypatch, *arguments, "--csv", tmp_path / "runs.csv")


def test_the_page_has_what_the_record_gives(monkeypatch, capsys):
    tables(monkeypatch, "--csv", ROOT / "docs/data/phsfl-runs.csv")
    printed = capsys.readouterr().out.strip("\n").split("\n\n")
    blocks = re.findall(r"^```\n(.*?)\n```$", (ROOT / "docs/phsfl.md").read_text(encoding="utf-8"), re.M | re.S)
    (leads,) = [part for part in printed if part.startswith("Accuracy of PHSFL's heads")]
    larger = [part for part in printed if part.splitlines()[0].endswith(", trained at 0.032")]
    assert len(larger) == 2
    assert blocks == [leads, "\n\n".join(map(in_short, larger))]
    with (ROOT / "docs/data/phsfl-runs.csv").open(newline="") as file:
        assert {line["machine"] for line in csv.DictReader(file)} != {""}


def in_short(table):
    """Return a table's global models and, of the heads with the paper's number of steps, the most accurate ones."""
    title, header, *rows = table.splitlines()
    shown = []
    for name in ("hsfl", "phsfl"):
        own = [row for row in rows if row.startswith(f"{name}, ")]
        heads = [row for row in own if row.startswith(f"{name}, K={PAPERS_STEPS} at ")]
        shown += [row for row in own if row.startswith(f"{name}, global ")]
        shown.append(max(heads, key=lambda row: float(row[36:].split()[0])))
    return "\n".join([title, header, *shown])


def page():
    """Return the page's text, with single spaces."""
    return " ".join((ROOT / "docs/phsfl.md").read_text(encoding="utf-8").split())


def found(algorithm, alpha, learning_rate, steps=0, rate=0.0, seed=0, number=100, batches=5):
    """Return the one line of the record that is of these."""
    wanted = (algorithm, alpha, learning_rate, batches, seed, number, steps, rate)
    (line,) = [line for line in read_lines(Line, ROOT / "docs/data/phsfl-runs.csv") if line[:8] == wanted]
    return line


def best(algorithm, alpha, learning_rate):
    """Return the line of the best fine-tuning rate with the paper's number of steps."""
    run = algorithm, alpha, learning_rate, 5, 0
    own = [x for x in at_the_end(recorded()) if (x.run, x.steps) == (run, PAPERS_STEPS)]
    return max(own, key=lambda line: line.accuracy)


def test_what_the_page_says_of_the_best_rates_follows_from_the_record():
    text, tuned = page(), PAPER[0.1, "phsfl", True][0]
    printed, larger, at_05 = best("phsfl", 0.1, 0.01), best("phsfl", 0.1, 0.032), best("phsfl", 0.5, 0.032)
    assert f"models have {printed.accuracy:.4f} at the best fine-tuning rate, where the paper has {tuned} (K" in text
    assert f"they have {larger.accuracy:.4f} at the best fine-tuning rate, {larger.rate:g}." in text
    assert f"models {at_05.accuracy:.4f}, where the paper has {PAPER[0.5, 'phsfl', True][0]:.4f}, again at" in text
    assert abs(larger.accuracy - tuned) < 0.02


def test_which_algorithm_is_ahead_follows_from_the_record():
    lines, text = read_lines(Line, ROOT / "docs/data/phsfl-runs.csv"), page()
    leads = {setting: own for setting in {line.setting for line in lines} if (own := leads_of(lines, setting))}
    assert sorted(leads) == [(alpha, rate, 5) for alpha in (0.1, 0.5) for rate in (0.01, 0.032)]
    for own in (lead for of_setting in leads.values() for lead in of_setting.values()):
        assert min(own[0.001], own[0.003]) > 0 > max(own[0.03], own[0.1])
        assert own[0.0] < 0
    assert "At the same small rate they are ahead of HSFL's, as in the paper" in text
    assert "With each at its own best rate HSFL's are ahead, in every run here." in text
    apart = [PAPER[alpha, "phsfl", True][0] - PAPER[alpha, "hsfl", True][0] for alpha in (0.1, 0.5)]
    assert f"PHSFL is ahead by {apart[0]:.3f} at Dir(0.1) and by {apart[1]:.3f} at Dir(0.5), with 10 steps" in text


def test_leads_are_of_the_seeds_that_both_have_and_at_each_ones_best_rate():
    tuned = A._replace(steps=PAPERS_STEPS, rate=0.01)
    lines = [
        *(tuned._replace(accuracy=0.5, seed=seed) for seed in (0, 1)),
        *(tuned._replace(accuracy=0.7, rate=0.1, seed=seed) for seed in (0, 1)),
        tuned._replace(algorithm="phsfl", accuracy=0.625, seed=1),
        tuned._replace(algorithm="phsfl", accuracy=0.2, rate=0.1, seed=1),
        tuned._replace(algorithm="phsfl", seed=2),
        tuned._replace(seed=2, round=6),
    ]
    assert leads_of(lines, (0.1, 0.01, 5)) == {1: {0.01: 0.125, 0.1: pytest.approx(-0.5), 0.0: pytest.approx(-0.075)}}


def test_what_the_page_says_of_the_printed_settings_follows_from_the_record():
    lines, text = [line for line in recorded() if line.learning_rate == 0.01], page()
    models = [line for line in at_the_end(lines) if line.steps == 0 and line.batches_per_epoch == 5]
    below = sorted(PAPER[line.alpha, line.algorithm, False][0] - line.accuracy for line in models)
    assert len(below) == 4
    assert f"All four global models are {below[0]:.4f} to {below[-1]:.4f} below" in text
    centralised = {line.round: line.accuracy for line in lines if line.algorithm == "centralised"}
    highest = max(centralised, key=lambda epoch: centralised[epoch])
    assert f"At its best, after epoch {highest}, it has {centralised[highest]:.4f}" in text
    assert f"5 epochs of 1,563, centralised SGD has {centralised[5]:.4f}" in text
    for algorithm, alpha, epoch in (("hsfl", 0.1, 7), ("phsfl", 0.5, 13)):
        published = PAPER[alpha, algorithm, False][0]
        assert min(n for n, accuracy in centralised.items() if accuracy > published) == epoch
    published = PAPER[0.1, "hsfl", False][0]
    assert f"the {published} that the paper gives for HSFL at Dir(0.1) in epoch 7, after some 10,000 steps" in text
    assert {line.alpha for line in lines if line.algorithm == "centralised"} == {0.1}


def test_what_the_page_says_of_larger_steps_follows_from_the_record():
    text = page()
    below = {
        (name, steps): PAPER[0.1, name, steps > 0][0] - found(name, 0.1, 0.032, steps, rate).accuracy
        for name in ("hsfl", "phsfl")
        for steps, rate in ((0, 0.0), (PAPERS_STEPS, 0.01))
    }
    assert f"with fine-tuned heads are {min(below.values()):.4f} to {max(below.values()):.4f} below" in text
    for rate in (0.001, 0.003, 0.03, 0.1):  # at no other rate do both come as close
        apart = [
            abs(found(name, 0.1, 0.032, PAPERS_STEPS, rate).accuracy - PAPER[0.1, name, True][0])
            for name in ("hsfl", "phsfl")
        ]
        assert max(apart) > max(below.values())


def test_epochs_over_all_images_go_about_as_far_as_larger_steps():
    lines, text = [line for line in recorded() if line.algorithm == "phsfl" and not line.steps], page()
    whole, larger, printed = (
        {line.round: line.accuracy for line in lines if line.setting == setting}
        for setting in ((0.1, 0.01, 0), (0.1, 0.032, 5), (0.1, 0.01, 5))
    )
    last, apart = max(whole), max(abs(whole[number] - larger[number]) for number in whole)
    assert whole.keys() == set(range(5, last + 1, 5))
    then = f"its global model has {whole[last]:.4f} then, where 5 mini-batches give {printed[last]:.4f}."
    assert f"PHSFL was trained for {last} rounds: {then}" in text
    assert "goes about as far as 16 mini-batches at 0.01" in text
    assert apart < 0.02 < whole[last] - printed[last]


def test_the_global_models_still_get_better_at_the_end():
    lines = [x for x in read_lines(Line, ROOT / "docs/data/phsfl-runs.csv") if not x.steps and x.batches_per_epoch == 5]
    runs = {x.run: {} for x in lines}
    for x in lines:
        runs[x.run][x.round] = x.accuracy
    assert len(runs) == 16
    assert all(max(run) == 100 and run[80] < run[90] < run[100] for run in runs.values())
    assert "The global models still get better at the end, round 100" in page()


def test_other_seeds_have_the_same_best_rates_and_come_near_the_paper():
    record = at_the_end(read_lines(Line, ROOT / "docs/data/phsfl-runs.csv"))
    rates = {"phsfl": 0.003, "hsfl": 0.1}
    others = {(name, alpha, 0.032, 5, seed) for name in rates for alpha in (0.1, 0.5) for seed in (1, 2)}
    assert {line.run for line in record if line.seed} == others
    for alpha in (0.1, 0.5):
        for name, rate in rates.items():
            assert best(name, alpha, 0.032).rate == rate
        tuned = [found("phsfl", alpha, 0.032, PAPERS_STEPS, rates["phsfl"], seed=s).accuracy for s in range(3)]
        assert abs(fmean(tuned) - PAPER[alpha, "phsfl", True][0]) < 0.01
