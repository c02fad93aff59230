"""A run that each tracker gets, and goes on with."""

from pathlib import Path

from tests.app.runs import lines, run_app

SETTINGS = {
    "algorithm": "h-fedavg-m1",
    "num_clients": 4,
    "num_edges": 2,
    "batches_per_epoch": 1,
    "availability.mode": "markov",
    "availability.drop-out": 0.3,
}


def tracked(folder: Path, tracker: str, **settings) -> Path:
    """Make two rounds with failures, plans and plots into `folder`, go on to a third, and return the folder."""
    given = {**SETTINGS, "report_tracker": tracker, "report_plots": True, **settings}
    run_app(folder, **given)
    return run_app(folder, resume=str(folder), output_dir="", global_rounds=3, **given)


def expected(folder: Path) -> dict[str, list[float]]:
    """Return some figures of the rounds of a run, by the names that trackers have for them."""
    rounds = lines(folder, "global")
    west = [line for line in lines(folder, "edge") if line["edge"] == "edge-0"]
    plans = [line["plans"] for line in west]
    assert sum(line["failures"] for line in rounds) > 0
    return {
        "accuracy/mean": [line["accuracy"]["mean"] for line in rounds],
        "test/loss": [line["test"]["loss"] for line in rounds],
        "failures": [line["failures"] for line in rounds],
        "bytes/edge/uplink/accumulated-gradient": [
            line["bytes"]["edge"]["uplink"]["accumulated-gradient"] for line in rounds
        ],
        "edges/edge-0/loss": [line["loss"] for line in west],
        "edges/edge-0/failures": [len(line["failures"]) for line in west],
        "edges/edge-0/plans/selected": [sum(len(plan["selected"]) for plan in one) for one in plans],
        "edges/edge-0/plans/upload_joules": [sum(sum(plan["upload_joules"]) for plan in one) for one in plans],
    }


def a_failure(folder: Path) -> tuple[int, str]:
    """Return the round of a failure, and the text that trackers have for it."""
    line = next(line for line in lines(folder, "edge") if line["failures"])
    one = line["failures"][0]
    return line["round"], f"{line['edge']}, edge round {one['edge_round']}: client {one['client']}: {one['reason']}"
