"""How the number of steps and the rate of fine-tuning decide what personalisation gives.

``python experiments/fine_tuning.py FOLDER ...`` takes the results folders of finished split runs, fine-tunes the heads
of each with several numbers of steps K and learning rates, and prints, by algorithm, the mean over clients of
the test accuracy, with its mean and standard deviation over the runs (seeds). The first row is the global model.
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean, pstdev

from rich.progress import track

from app.algorithms import build_algorithm
from app.config import RunConfig
from app.engines import in_process_grid
from app.federation import assign_edges, gather_clients
from app.logs import quiet_flower
from app.reports.folder import ResultsFolder, saved_config
from strategies.exchange import converse
from strategies.split import FineTuning, SplitEdge
from strategies.views import MemberGrid

SETTINGS = [FineTuning(k, rate) for k in (10, 50) for rate in (0.003, 0.01, 0.03, 0.1)]


def accuracies(folder: Path, config: RunConfig) -> list[float]:
    """Return the mean accuracy over clients of the global model and for each of `SETTINGS`."""
    grid = in_process_grid(config)
    profiles = gather_clients(grid, config)
    client_of = {profile.node_id: profile.partition_id for profile in profiles}
    hierarchical = build_algorithm(config, assign_edges(profiles, config), client_of)
    results_folder = ResultsFolder(folder)
    state = results_folder.load_state()
    assert state is not None
    evaluated = [line for line in results_folder.read_metrics() if line["scope"] == "global" and "accuracy" in line]
    means = [evaluated[-1]["accuracy"]["mean"]]
    for setting in SETTINGS:
        conversations = {
            name: edge.personalise(state["arrays"], setting, MemberGrid(grid, hierarchical.topology[name]))
            for name, edge in hierarchical.edges.items()
            if isinstance(edge, SplitEdge)
        }
        results = converse(grid, conversations)
        means.append(fmean(float(m["accuracy"]) for r in results.values() for m in r.metrics.values()))
    return means


def main() -> None:
    """Measure and print."""
    quiet_flower()
    found = defaultdict(list)
    for name in track(sys.argv[1:], "runs"):
        folder = Path(name).absolute()
        config = saved_config(folder)
        found[config.algorithm].append(accuracies(folder, config))
    print(f"{'':<12}" + "".join(f"{name:>16}" for name in found))
    print(f"{'runs':<12}" + "".join(f"{len(rows):>16}" for rows in found.values()))
    for i, label in enumerate(["global", *(f"K={s.num_steps} {s.learning_rate:g}" for s in SETTINGS)]):
        columns = [[row[i] for row in rows] for rows in found.values()]
        print(f"{label:<12}" + "".join(f"{f'{fmean(c):.3f} +- {pstdev(c):.3f}':>16}" for c in columns))


if __name__ == "__main__":
    main()
