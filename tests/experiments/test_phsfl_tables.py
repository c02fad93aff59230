"""The PHSFL paper's tables are of the finished runs, each measured once, and the page prints what is recorded."""

import csv
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from espalier.app.comparison.runs import FinishedRun
from espalier.app.errors import UserError
from espalier.app.sweeps.grid import planned_runs, read_sweep
from espalier.strategies.split import FineTuning
from experiments import fine_tuning, phsfl_tables
from experiments.phsfl_tables import PAPER, PAPERS_STEPS, Line, at_the_end, main, run_of
from experiments.recorded_runs import read_lines, write_lines
from tests.app.runs import run_app, summary

ROOT = Path(__file__).parents[2]
SHORT = {"num_clients": 4, "global_rounds": 2, "evaluate_every": 1, "partition": "dirichlet", "alpha": 0.5}
A = Line("hsfl", 0.1, 0.01, 0, 5, 0, 0.0, 0.25, 2.0, "abc", "a machine, 2 cores")


def recorded():
    """Return the lines of seed 0, which the page's text is of."""
    return [line for line in read_lines(Line, ROOT / "docs/phsfl-runs.csv") if line.seed == 0]


def tables(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["phsfl_tables.py", *map(str, arguments)])
    main()


def test_what_is_recorded_is_read_back_in_order(tmp_path):
    assert read_lines(Line, tmp_path / "none.csv") == []
    later, tuned = A._replace(round=10), A._replace(round=10, steps=10, rate=0.01)
    write_lines(Line, tmp_path / "runs.csv", [tuned, A, later])
    assert read_lines(Line, tmp_path / "runs.csv") == [A, later, tuned]
    assert at_the_end([A, later, tuned]) == [later, tuned]


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
    runs = [A._replace(seed=seed, accuracy=accuracy) for seed, accuracy in enumerate((0.5, 0.7))]
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


def test_runs_with_another_learning_rate_are_others_and_have_their_own_table(tmp_path, monkeypatch, capsys):
    lines = [A, A._replace(learning_rate=0.032, round=6, accuracy=0.5)]
    assert at_the_end(lines) == lines
    write_lines(Line, tmp_path / "runs.csv", lines)
    tables(monkeypatch, "--csv", tmp_path / "runs.csv")
    papers, larger = capsys.readouterr().out.strip().split("\n\n")
    assert (papers.splitlines()[0], larger.splitlines()[0]) == ("Dir(0.1)", "Dir(0.1), trained at 0.032")
    assert (papers.splitlines()[2].split()[2:4], larger.splitlines()[2].split()[2:4]) == (
        ["1", "0.2500"],
        ["1", "0.5000"],
    )


@pytest.mark.parametrize("algorithm", ["hsfl", "centralised"])
def test_a_run_with_other_settings_is_refused(tmp_path, monkeypatch, algorithm):
    (planned,) = planned_runs(read_sweep([str(phsfl_tables.SETTINGS_FILE), f"algorithm={algorithm}"]))
    ours = planned.settings
    run = FinishedRun(tmp_path, {**ours, "alpha": 0.5, "seed": 2, "dataset": "image-folder"}, {}, {})
    assert run_of(run) == (algorithm, 0.5, 0.01, 2)
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
    tables(monkeypatch, "--csv", ROOT / "docs/phsfl-runs.csv")
    page = (ROOT / "docs/phsfl.md").read_text(encoding="utf-8")
    for line in capsys.readouterr().out.splitlines():
        assert line in page
    with (ROOT / "docs/phsfl-runs.csv").open(newline="") as file:
        assert {line["machine"] for line in csv.DictReader(file)} != {""}


def test_what_the_page_says_of_dir_05_follows_from_the_record():
    lines = [line for line in recorded() if line.learning_rate == 0.01]
    centralised = {line.round: line.accuracy for line in lines if line.algorithm == "centralised"}
    phsfl = [line for line in at_the_end(lines) if (line.algorithm, line.alpha) == ("phsfl", 0.5)]
    (before,) = [line.accuracy for line in phsfl if line.steps == 0]
    gains = {line.rate: line.accuracy - before for line in phsfl if line.steps == 10}
    page = " ".join((ROOT / "docs/phsfl.md").read_text(encoding="utf-8").split())
    assert f"gain {gains[0.001]:.4f} over its global model with 10 steps at 0.001" in page
    assert f"at 0.001, and {gains[0.003]:.4f} at 0.003" in page
    assert f"worse than the global model, by {-gains[0.01]:.4f}" in page
    assert f"{centralised[5] - before:.4f} below centralised SGD after as many steps" in page
    hsfl = [line for line in at_the_end(lines) if (line.algorithm, line.alpha) == ("hsfl", 0.5)]
    ours, others = ({line.rate: line.accuracy for line in own if line.steps == 10} for own in (phsfl, hsfl))
    ahead = f"at K = 10 and rates of 0.001 ({ours[0.001]:.4f} against {others[0.001]:.4f}) and 0.003"
    assert f"{ahead} ({ours[0.003]:.4f} against {others[0.003]:.4f})" in page
    assert [rate for rate in ours if ours[rate] > others[rate]] == [0.001, 0.003]
    assert f"own best rate HSFL has {max(others.values()):.4f} and PHSFL {max(ours.values()):.4f}" in page
    published = [f"{PAPER[0.5, name, True][0]:.4f} for {name.upper()}" for name in ("phsfl", "hsfl")]
    assert f"give {' and '.join(published)}" in page
    (model,) = [line.accuracy for line in hsfl if line.steps == 0]
    assert f"HSFL has {model:.4f} there, which is {model - centralised[5]:.4f} above it" in page
    models = [line for line in at_the_end(lines) if line.steps == 0 and line.algorithm != "centralised"]
    below = sorted(PAPER[line.alpha, line.algorithm, False][0] - line.accuracy for line in models)
    assert f"all four global models are {below[0]:.4f} to {below[-1]:.4f} below the paper's" in page
    assert len(below) == 4
    assert all(line.accuracy < centralised[5] for line in models if line.alpha == 0.1)
    assert min(epoch for epoch, accuracy in centralised.items() if accuracy > 0.7049) == 13
    assert "the paper 0.7049, which centralised SGD passes in epoch 13" in page


def test_what_the_page_says_of_larger_steps_at_dir_05_follows_from_the_record():
    record = at_the_end(recorded())
    page = " ".join((ROOT / "docs/phsfl.md").read_text(encoding="utf-8").split())

    def found(learning_rate, steps, rate, algorithm="phsfl"):
        setting = (algorithm, 0.5, learning_rate, steps, rate)
        (line,) = [x for x in record if (x.algorithm, x.alpha, x.learning_rate, x.steps, x.rate) == setting]
        return line

    model, published = found(0.032, 0, 0.0), PAPER[0.5, "phsfl", False][0]
    assert f"The global model has {model.accuracy:.4f} and a loss of {model.loss:.4f} (paper: {published}" in page
    assert f"which is {published - model.accuracy:.4f} below the paper's accuracy" in page
    assert f"At 0.01 it was {published - found(0.01, 0, 0.0).accuracy:.4f} below" in page
    published = round(PAPER[0.5, "phsfl", True][0], 4)
    slow, best = (found(0.032, 10, rate).accuracy for rate in (0.001, 0.003))
    assert f"heads have {slow:.4f} at a fine-tuning rate of 0.001 and {best:.4f} at 0.003" in page
    assert f"{published - slow:.4f} below the paper's {published} and {best - published:.4f} above it" in page
    assert f"they had {found(0.01, 10, 0.001).accuracy:.4f} and {found(0.01, 10, 0.003).accuracy:.4f}" in page
    assert f"personalised models {best:.4f}, where the paper has {published}" in page
    assert best == max(x.accuracy for x in record if x[:3] == ("phsfl", 0.5, 0.032) and x.steps == 10)
    whole, (accuracy, loss) = found(0.032, 0, 0.0, "hsfl"), PAPER[0.5, "hsfl", False]
    assert f"HSFL's global model has {whole.accuracy:.4f} and a loss of {whole.loss:.4f} there" in page
    assert f"(paper: {accuracy} and {loss}), so freezing the classifier costs" in page
    assert f"freezing the classifier costs {whole.accuracy - model.accuracy:.4f}." in page
    heads = {rate: found(0.032, 10, rate, "hsfl").accuracy for rate in (0.001, 0.003, 0.01, 0.03, 0.1)}
    *first, last = [f"{accuracy:.4f} at {rate}" for rate, accuracy in heads.items()]
    published = round(PAPER[0.5, "hsfl", True][0], 4)
    assert f"HSFL's heads have {', '.join(first)} and {last} (paper: {published})" in page
    ahead = [rate for rate, accuracy in heads.items() if found(0.032, 10, rate).accuracy > accuracy]
    assert ahead == [0.001, 0.003, 0.01]
    assert f"with each at its own best rate HSFL is, by {max(heads.values()) - best:.4f} here" in page
    many = {
        name: max(x.accuracy for x in record if x[:3] == (name, 0.5, 0.032) and x.steps == 50)
        for name in ("hsfl", "phsfl")
    }
    assert f"With 50 steps HSFL's best is {many['hsfl']:.4f} and PHSFL's {many['phsfl']:.4f}" in page


def test_by_how_much_hsfl_is_ahead_at_its_best_rate_follows_from_the_record():
    record = at_the_end(recorded())
    page = " ".join((ROOT / "docs/phsfl.md").read_text(encoding="utf-8").split())

    def ahead(learning_rate, alpha):
        hsfl, phsfl = (
            max(x.accuracy for x in record if x[:3] == (name, alpha, learning_rate) and x.steps == PAPERS_STEPS)
            for name in ("hsfl", "phsfl")
        )
        return f"{hsfl - phsfl:.4f}"

    papers, larger = ([ahead(rate, alpha) for alpha in (0.1, 0.5)] for rate in (0.01, 0.032))
    assert f"with the paper's learning rate by {papers[0]} at Dir(0.1) and {papers[1]} at Dir(0.5)" in page
    assert f"with the larger one by {larger[0]} and {larger[1]}." in page


def test_at_which_fine_tuning_rate_both_algorithms_come_close_to_the_paper_follows_from_the_record():
    record = [x for x in at_the_end(recorded()) if x[1:3] == (0.1, 0.032)]
    page = " ".join((ROOT / "docs/phsfl.md").read_text(encoding="utf-8").split())
    below = {
        (x.algorithm, x.steps, x.rate): PAPER[0.1, x.algorithm, bool(x.steps)][0] - x.accuracy
        for x in record
        if x.steps in (0, PAPERS_STEPS)
    }
    four = [below[name, *setting] for name in ("hsfl", "phsfl") for setting in ((0, 0.0), (PAPERS_STEPS, 0.01))]
    assert f"with fine-tuned heads are {min(four):.4f} to {max(four):.4f} below" in page
    rates = {rate for _, steps, rate in below if steps}
    assert rates == {0.001, 0.003, 0.01, 0.03, 0.1}
    close = [r for r in rates if max(abs(below[name, PAPERS_STEPS, r]) for name in ("hsfl", "phsfl")) <= max(four)]
    assert close == [0.01]
    assert "fine-tuning rate of 0.01, and at no other that we tried" in page
    best = max((x for x in record if x.algorithm == "phsfl" and x.steps == PAPERS_STEPS), key=lambda x: x.accuracy)
    assert f"they have {best.accuracy:.4f} at the best fine-tuning rate, {best.rate:g}" in page


def test_the_global_models_still_get_better_at_the_end():
    lines = [x for x in recorded() if x.steps == 0 and x.algorithm != "centralised"]
    runs = {x.run: {} for x in lines}
    for x in lines:
        runs[x.run][x.round] = x.accuracy
    assert len(runs) == 8
    assert all(max(run) == 100 and run[80] < run[90] < run[100] for run in runs.values())


def test_the_centralised_run_is_evaluated_on_the_clients_of_dir_01():
    lines = recorded()
    assert {x.alpha for x in lines if x.algorithm == "centralised"} == {0.1}
    assert "evaluated on the test sets of the clients at Dir(0.1)" in " ".join(
        (ROOT / "docs/phsfl.md").read_text().split()
    )


def test_what_the_page_says_of_larger_steps_follows_from_the_record():
    record = [line for line in recorded() if line.alpha == 0.1]
    page = " ".join((ROOT / "docs/phsfl.md").read_text(encoding="utf-8").split())
    published, _ = PAPER[0.1, "phsfl", True]

    def found(learning_rate, algorithm="phsfl", **wanted):
        wanted |= {"algorithm": algorithm, "learning_rate": learning_rate}
        (line,) = [line for line in record if wanted.items() <= line._asdict().items()]
        return line

    early, as_early = found(0.032, round=30, steps=0), found(0.01, round=95, steps=0)
    assert (
        f"After 30 rounds the model has {early.accuracy:.4f}; at 0.01 it has {as_early.accuracy:.4f} after 95" in page
    )
    model = found(0.032, round=100, steps=0)
    assert f"PHSFL's global model has {model.accuracy:.4f} and a loss of {model.loss:.4f}" in page
    slow, best, high = (found(0.032, steps=10, rate=rate) for rate in (0.001, 0.003, 0.01))
    assert f"heads have {slow.accuracy:.4f} and {slow.loss:.4f} at a fine-tuning rate of 0.001" in page
    assert f"and {best.accuracy:.4f} and {best.loss:.4f} at 0.003" in page
    assert f"at 0.01 it is {high.accuracy:.4f}" in page
    assert max(abs(line.accuracy - published) for line in (slow, best)) < 0.02 < published - high.accuracy
    at_best = max(line.accuracy for line in record if line[:3] == ("phsfl", 0.1, 0.01) and line.steps == PAPERS_STEPS)
    assert f"personalised models have {at_best:.4f} at the best fine-tuning rate" in page

    both = {name: found(0.032, name, round=100, steps=0) for name in ("hsfl", "phsfl")}
    below = {name: PAPER[0.1, name, False][0] - line.accuracy for name, line in both.items()}
    assert f"HSFL's {both['hsfl'].accuracy:.4f} and {both['hsfl'].loss:.4f}" in page
    assert f"below the paper's by {below['hsfl']:.4f} for HSFL and {below['phsfl']:.4f} for PHSFL" in page
    assert f"costs the global model {both['hsfl'].accuracy - both['phsfl'].accuracy:.4f}." in page
    hsfl, phsfl = (
        {line.rate: line.accuracy for line in record if line[:3] == (name, 0.1, 0.032) and line.steps == PAPERS_STEPS}
        for name in both
    )
    assert f"HSFL's heads have {', '.join(f'{hsfl[rate]:.4f} at {rate:g}' for rate in hsfl)}" in page
    assert [rate for rate in phsfl if phsfl[rate] > hsfl[rate]] == [0.001, 0.003, 0.01]
    short = {name: PAPER[0.1, name, True][0] - heads[0.01] for name, heads in (("hsfl", hsfl), ("phsfl", phsfl))}
    assert f"heads are {short['hsfl']:.4f} below the paper's and PHSFL's {short['phsfl']:.4f}" in page
    ours, others = max(phsfl.values()), max(hsfl.values())
    assert f"PHSFL has {ours:.4f} and HSFL {others:.4f}, so HSFL is ahead by {others - ours:.4f}" in page
    assert others == hsfl[max(hsfl)]


def test_what_the_page_says_of_another_seed_follows_from_the_record():
    record = at_the_end(read_lines(Line, ROOT / "docs/phsfl-runs.csv"))
    page = " ".join((ROOT / "docs/phsfl.md").read_text(encoding="utf-8").split())
    own = [line for line in record if line[:3] == ("phsfl", 0.1, 0.032)]
    assert {line.seed for line in record if line.seed} == {line.seed for line in own if line.seed} == {1}
    (model,) = [line.accuracy for line in own if (line.seed, line.steps) == (1, 0)]
    heads = {line.rate: line.accuracy for line in own if (line.seed, line.steps) == (1, PAPERS_STEPS)}
    assert f"global model has {model:.4f}, and its heads have {heads[0.001]:.4f} at 0.001" in page
    assert f"{heads[0.003]:.4f} at 0.003 and {heads[0.01]:.4f} at 0.01." in page
    of_both = [line.accuracy for line in own if (line.steps, line.rate) == (PAPERS_STEPS, 0.003)]
    assert f"The mean of both seeds is {fmean(of_both):.4f} at 0.003 (paper: {PAPER[0.1, 'phsfl', True][0]})" in page
    assert abs(fmean(of_both) - PAPER[0.1, "phsfl", True][0]) < 0.02
