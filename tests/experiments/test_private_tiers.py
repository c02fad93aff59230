"""Table and figure of accuracy over epsilon are those of the recorded runs."""

import re
from itertools import pairwise, product
from pathlib import Path

import pytest

from espalier.app.config.parse import parse_config, read_arguments
from experiments import private_tiers
from experiments.records import read_rows

ROOT = Path(__file__).parents[2]
RECORDED, PAGE = ROOT / "docs/data/private-tiers.csv", ROOT / "docs/differential-privacy.md"
SMALL = {"num-clients": 4, "global-rounds": 1, "local-epochs": 1, "stack": 0}


def recorded():
    return read_rows(RECORDED, private_tiers.COLUMNS)


def test_the_table_of_the_docs_is_that_of_the_recorded_runs(capsys):
    private_tiers.print_table(recorded())
    assert capsys.readouterr().out in PAGE.read_text()


def test_every_run_is_recorded_once_and_stayed_within_its_budget():
    runs = [(row["setting"], row["level"], row["budget"], row["seed"]) for row in recorded()]
    levels = private_tiers.LEVELS
    assert sorted(runs) == sorted(product(private_tiers.SETTINGS, levels, private_tiers.EPSILONS, private_tiers.SEEDS))
    assert all(0.98 * row["budget"] < row["epsilon"] <= row["budget"] for row in recorded() if row["budget"])


def test_what_the_page_says_of_levels_holds():
    found = private_tiers.means(recorded())
    for setting, level in product(private_tiers.SETTINGS, private_tiers.LEVELS):
        figures = [found[setting, level, budget] for budget in private_tiers.EPSILONS]
        # More budget costs less, or what the seeds hide.
        assert all(less < more + own + its for (less, own), (more, its) in pairwise(figures)), (setting, level)
        assert figures[0] < figures[-1]
    for setting in private_tiers.SETTINGS:
        assert found[setting, "client-at-cloud", 1.0] > found[setting, "client-at-edge", 1.0]
    for level in ("client-at-edge", "client-at-cloud"):
        (mean, spread), (free, _) = found["cifar10", level, 3.0], found["cifar10", level, 0.0]
        assert abs(mean - free) < spread


def test_commands_of_the_page_are_of_settings_that_go_together():
    commands = re.findall(r"^python -m app (.*)$", PAGE.read_text(), flags=re.M)
    configs = [parse_config(read_arguments(command.split())) for command in commands]
    assert [config.as_dict()["privacy.level"] for config in configs] == ["client-at-edge", "example-at-client"]


@pytest.mark.usefixtures("with_png")
def test_a_figure_has_a_line_for_each_level(tmp_path):
    private_tiers.draw(tmp_path / "tiers.png", recorded())
    assert (tmp_path / "tiers.png").stat().st_size > 10_000


def test_runs_that_have_a_row_are_not_made_again(tmp_path, monkeypatch, capsys):
    level = "client-at-edge"
    small = {level: {**private_tiers.LEVELS[level], **SMALL}}
    monkeypatch.setattr(private_tiers, "SETTINGS", {"digits": small})
    monkeypatch.setattr(private_tiers, "EPSILONS", (8.0, 0.0))
    path = tmp_path / "runs.csv"
    private_tiers.main(["--seeds", "3", "--csv", str(path)])
    first, written = capsys.readouterr().out, path.read_text()
    monkeypatch.setattr(private_tiers, "row_of_run", None)
    private_tiers.main(["--seeds", "3", "--csv", str(path)])
    assert (capsys.readouterr().out, path.read_text()) == (first, written)
