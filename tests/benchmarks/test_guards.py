"""The table of honest clients in the docs is that of the recorded runs: by default nobody is left out."""

from pathlib import Path

from benchmarks import guards
from experiments.records import read_rows

ROOT = Path(__file__).parents[2]


def recorded():
    """Return how many replies were left out, by run."""
    rows = read_rows(ROOT / "docs/data/honest-clients.csv", guards.COLUMNS)
    return {(row["world"], row["algorithm"], row["guard"], row["seed"]): row["left_out"] for row in rows}


def test_by_default_no_honest_reply_was_left_out():
    found = recorded()
    seeds = {what[3] for what in found}
    assert len(seeds) >= 5
    assert {what for what in guards.runs() if what[3] in seeds} == found.keys()
    assert {what: count for what, count in found.items() if what[2] == "defaults" and count} == {}


def test_the_docs_say_how_many_honest_replies_the_tight_bounds_leave_out():
    page = " ".join((ROOT / "docs/robustness.md").read_text().split())
    tight = {what[:2]: count for what, count in recorded().items() if what[2] != "defaults" and what[3] == 0}
    assert len({world for world, _ in tight}) == 8
    large = tight.pop(("one size 200 times", "rawhfl"))
    digits = max(count for (world, _), count in tight.items() if world.startswith("digits"))
    assert f"up to {digits} replies of digits, and in `rawhfl` {large} of a client with 200 times" in page
    assert all(count == 0 for (world, _), count in tight.items() if not world.startswith("digits"))


def test_replies_that_a_bound_leaves_out_are_counted(monkeypatch):
    monkeypatch.setattr(guards, "SETTING", {**guards.SETTING, "global-rounds": 1})
    monkeypatch.setattr(guards, "GUARDS", {"defaults": {}, "tightest": {"guard.update-norm": 1.0}})
    assert guards.left_out("one size 200 times", "fedavg", "defaults", 0) == 0
    assert guards.left_out("one size 200 times", "fedavg", "tightest", 0) > 0
