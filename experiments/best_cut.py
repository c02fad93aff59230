"""What it saves to choose each client's cut layer, against one cut for all.

``python -m experiments.best_cut [FOLDER]`` plans edge rounds of split training in ten worlds like the RawHFL paper's,
with 8 to 12 clients in each of four cells, Z = 4 of them selected, at most 5 local rounds, theta = 0.4: with each cut
for all clients, and with the best cut for each. A local round is n mini-batches of 32 colour images of 32x32, and takes
the paper's 25 to 40 CPU cycles for a bit of them, whatever the model. Every edge round stands on its own: who was
selected before does not matter. It prints means over the selected clients of all rounds, and draws FOLDER/best-cut.png
(default: the current folder).
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from espalier.app.ground.pictures import BLUE, ORANGE
from espalier.app.planning.simulated import BITS_PER_INPUT
from espalier.app.planning.work import Work, split_work
from espalier.app.tasks.models import build_model
from espalier.sim.world import World, make_world
from espalier.strategies.allocation import Plan, Problem, exact
from espalier.strategies.split.cuts import legal_cuts
from experiments.records import run_script

CLIENTS_PER_CELL, SELECTED, LOCAL_ROUNDS = (8, 9, 11, 12), 4, 5
SEEDS, ROUNDS = range(10), 20
IMAGE, BATCH_SIZE = (3, 32, 32), 32
COLUMNS = {"joules": 9, "rounds": 7, "objective": 10, "selected": 9, "eligible": 9, "chosen": 8}  # and their widths
COLORS = (BLUE, ORANGE, "#b4c5a1", "#6d597a")  # one for each cut


@dataclass(frozen=True)
class Case:
    """What is trained, and within which limits.

    Parameters
    ----------
    model : str
        Name of the model.
    mini_batches : int
        Mini-batches of a local round, n.
    bandwidth_hz : float
        Of a client's resource block.
    deadline_seconds : float
        Of an edge round.
    downlink_bits_per_second : float (default: infinite)
        Rate at which models and cut gradients come down. Infinite ignores that time, as the paper does.
    """

    model: str
    mini_batches: int
    bandwidth_hz: float
    deadline_seconds: float
    downlink_bits_per_second: float = inf

    def __str__(self) -> str:
        return f"{self.model}, n = {self.mini_batches}, {self.bandwidth_hz / 1e6:g} MHz, {self.deadline_seconds:g} s"


# Without and with a downlink: the paper's radio, then a whole carrier for every client.
CASES = [
    (Case(model, n, bandwidth, deadline), Case(model, n, bandwidth, deadline, downlink))
    for model, n, bandwidth, downlink, deadlines in (
        ("cnn", 10, 540e3, 10e6, (150.0, 10.0)),
        ("resnet18", 10, 540e3, 10e6, (150.0,)),
        ("resnet18", 1, 540e3, 10e6, (150.0, 40.0)),
        ("cnn", 10, 20e6, 100e6, (10.0, 3.0)),
        ("resnet18", 10, 20e6, 100e6, (40.0, 10.0)),
    )
    for deadline in deadlines
]
BEST = "best"
# By cut, and "best": the plans of all rounds.
Plans = dict[int | str, list[Plan]]


def work_of(model: str) -> Work:
    """Return the work of all cuts of a model."""
    network = build_model(model, image_shape=IMAGE, num_classes=10, seed=0)
    return split_work(network, IMAGE, legal_cuts(network))


def draw_worlds(bandwidth_hz: float, seeds: Sequence[int] = SEEDS) -> list[World]:
    """Return a world for each seed."""
    return [make_world(CLIENTS_PER_CELL, seed, bandwidth_hz=bandwidth_hz) for seed in seeds]


def problem_of(case: Case, work: Work, worlds: Sequence[World], edge_round: int) -> Problem:
    """Return the problem of an edge round of all worlds: cells do not touch each other.

    Parameters
    ----------
    case : Case
        What is trained, and within which limits.
    work : Work
        Of the cuts to choose from.
    worlds : Sequence[World]
        From `draw_worlds` with the case's bandwidth.
    edge_round : int
        Decides the channel.
    """
    devices = {
        name: np.concatenate([getattr(world.devices, name) for world in worlds])
        for name in ("cycles_per_bit", "max_frequency_hz", "max_power_watts", "energy_budget_joules")
    }
    examples, bits_per_example = case.mini_batches * BATCH_SIZE, BITS_PER_INPUT * np.prod(IMAGE)
    cycles = examples * bits_per_example * devices.pop("cycles_per_bit")
    once_bits, round_bits = work.once_bits[np.newaxis], examples * work.example_bits[np.newaxis]
    return Problem(
        **devices,
        gain=np.concatenate([world.gains(edge_round) for world in worlds]),
        cell=np.concatenate([world.cells.cell + len(CLIENTS_PER_CELL) * i for i, world in enumerate(worlds)]),
        cycles_per_local_round=cycles[:, np.newaxis] * work.share,
        payload_bits=once_bits,
        payload_bits_per_local_round=round_bits,
        idle_seconds=work.once_down_bits[np.newaxis] / case.downlink_bits_per_second,
        idle_seconds_per_local_round=round_bits / case.downlink_bits_per_second,
        clients_per_cell=SELECTED,
        deadline_seconds=case.deadline_seconds,
        max_local_rounds=LOCAL_ROUNDS,
        bandwidth_hz=case.bandwidth_hz,
        noise_watts=worlds[0].radio.noise_watts,
        capacitance=float(worlds[0].devices.capacitance[0]),
        theta=0.4,
    )


def solve(case: Case, worlds: Sequence[World], rounds: int = ROUNDS) -> Plans:
    """Return the plans of edge rounds 1, 2, ... with each cut for all clients, and with the best for each.

    Raises
    ------
    AssertionError
        If one cut for all does better, see `check`.
    """
    whole = work_of(case.model)
    works: dict[int | str, Work] = {
        cut + 1: Work(*(values[[cut]] for values in vars(whole).values())) for cut in range(whole.share.size)
    }
    works[BEST] = whole
    plans: Plans = {name: [] for name in works}
    for edge_round in range(1, rounds + 1):
        problems = {name: problem_of(case, work, worlds, edge_round) for name, work in works.items()}
        for name, problem in problems.items():
            plans[name].append(exact(problem))
        for found in plans.values():
            check(problems[BEST], plans[BEST][-1], found[-1])
    return plans


def check(problem: Problem, best: Plan, other: Plan) -> None:
    """Assert that no plan with one cut for all beats the one with the best cut for each, in any cell.

    A plan that selects fewer clients than asked for breaks a limit; it may have the better objective, and is no better.

    Raises
    ------
    AssertionError
        If a client can take part in the other plan alone, or a cell has more clients or, with as many, a better value.
    """
    assert best.eligible[other.eligible].all()
    (taken, value), (other_taken, other_value) = by_cell(problem, best), by_cell(problem, other)
    assert (taken >= other_taken).all()
    assert (value <= other_value + 1e-9)[taken == other_taken].all()


def by_cell(problem: Problem, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of selected clients of each cell, and their sum of ``-theta L + (1 - theta) e``."""
    cell, cells = problem.cell[plan.selected], problem.cell.max() + 1
    values = (1 - problem.theta) * plan.joules[plan.selected] - problem.theta * plan.local_rounds[plan.selected]
    return np.bincount(cell, minlength=cells), np.bincount(cell, values, minlength=cells)


def of_selected(plans: Sequence[Plan], name: str) -> np.ndarray:
    """Return an array of the plans, for the selected clients of all rounds."""
    return np.concatenate([getattr(plan, name)[plan.selected] for plan in plans])


def objective(plans: Sequence[Plan]) -> float:
    """Return the mean objective."""
    return float(np.mean([plan.objective for plan in plans]))


def chosen(plans: Plans) -> np.ndarray:
    """Return the share of each cut among the selected clients, where each has its best."""
    options = of_selected(plans[BEST], "option")
    return np.bincount(options, minlength=len(plans) - 1) / options.size


def median_gains(plans: Plans, worlds: Sequence[World]) -> dict[int, float]:
    """Return the median channel gain, in dB, of the selected clients who have each cut as their best."""
    rounds = range(1, len(plans[BEST]) + 1)
    gains = np.array([np.concatenate([world.gains(edge_round) for world in worlds]) for edge_round in rounds])
    options = of_selected(plans[BEST], "option")
    selected = gains[np.array([plan.selected for plan in plans[BEST]])]
    return {cut + 1: float(10 * np.log10(np.median(selected[options == cut]))) for cut in np.unique(options).tolist()}


def print_works() -> None:
    """Print what the cuts of the models mean for a client."""
    print(f"{'model':<9}{'cut':>4}{'arithmetic':>12}{'Mbit a round':>14}{'Mbit a mini-batch':>19}")
    for model in dict.fromkeys(case.model for case, _ in CASES):
        work = work_of(model)
        rows = zip(work.share, work.once_bits, work.example_bits, strict=True)
        for cut, (share, once, example) in enumerate(rows, 1):
            print(f"{model:<9}{cut:>4}{share:>12.1%}{once / 1e6:>14.2f}{BATCH_SIZE * example / 1e6:>19.2f}")


def print_cases(case: Case, limited: Case, ignored: Plans, waited: Plans) -> None:
    """Print a row per choice of cuts, with the downlink ignored on the left and with its time on the right."""
    print(f"\n{case}")
    print(f"{'':>5}{'downlink ignored':>52}{f'{limited.downlink_bits_per_second / 1e6:g} Mbit/s down':>52}")
    heads = "".join(f"{head:>{width}}" for head, width in COLUMNS.items())
    print(f"{'cut':>5}{heads}{heads}")
    for name in ignored:
        print(f"{name:>5}{row_of(ignored, name)}{row_of(waited, name)}".rstrip())


def row_of(plans: Plans, name: int | str) -> str:
    """Return what the table says of one choice of cuts."""
    found = plans[name]
    joules = of_selected(found, "joules")
    share = "" if name == BEST else f"{chosen(plans)[int(name) - 1]:.1%}"
    cells = (
        f"{joules.mean():.4f}" if joules.size else "-",
        f"{of_selected(found, 'local_rounds').mean():.2f}" if joules.size else "-",
        f"{objective(found):.4f}",
        f"{joules.size / (len(found) * len(SEEDS) * len(CLIENTS_PER_CELL)):.2f}",
        f"{np.mean([plan.eligible.mean() for plan in found]):.1%}",
        share,
    )
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, COLUMNS.values(), strict=True))


def draw(found: Sequence[tuple[Case, Plans]], path: Path) -> None:
    """Draw the objective of every choice of cuts, and how often each cut is a client's best."""
    figure = Figure(figsize=(10.0, 5.0), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    draw_objectives(left, [plans for _, plans in found])
    draw_shares(right, [plans for _, plans in found])
    left.set_yticks(range(len(found)), [label_of(case) for case, _ in found], fontsize=8)
    left.invert_yaxis()
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="x", alpha=0.3)
        ax.set_axisbelow(True)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, ncols=len(labels), frameon=False, fontsize=8, loc="outside upper center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def draw_objectives(ax: Axes, found: Sequence[Plans]) -> None:
    """Draw a row per case, with a mark for each cut and for the best."""
    for cut, color in enumerate(COLORS, 1):
        at = [(objective(plans[cut]), place) for place, plans in enumerate(found) if cut in plans]
        ax.plot(*zip(*at, strict=True), "o", color=color, ms=6, label=f"cut {cut} for all")
    best = [objective(plans[BEST]) for plans in found]
    ax.plot(best, range(len(found)), "|", color="black", ms=13, mew=1.5, label="the best cut for each")
    ax.set(xlabel="objective, less is better", xticks=(-2, -1.5, -1, -0.5, 0))


def draw_shares(ax: Axes, found: Sequence[Plans]) -> None:
    """Draw a row per case, with a bar for each cut."""
    shares = np.zeros((len(found), len(COLORS)))
    for place, plans in enumerate(found):
        shares[place, : len(plans) - 1] = chosen(plans)
    before = np.cumsum(shares, axis=1) - shares
    for cut, color in enumerate(COLORS):
        ax.barh(range(len(found)), shares[:, cut], left=before[:, cut], color=color, height=0.7)
    ax.set(xlabel="share of the selected clients whose best cut it is", xlim=(0, 1))


def label_of(case: Case) -> str:
    """Return what the figure calls a case."""
    rate = case.downlink_bits_per_second
    return str(case) if rate == inf else f"with {rate / 1e6:g} Mbit/s down"


def main() -> None:
    """Plan, print and draw."""
    parser = ArgumentParser(description="What it saves to choose each client's cut layer, against one cut for all.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="of the figure, default: the current one")
    arguments = parser.parse_args()
    print_works()
    found = []
    for pair in CASES:
        worlds = draw_worlds(pair[0].bandwidth_hz)
        plans = [solve(case, worlds) for case in pair]
        print_cases(*pair, *plans)
        gains = (", ".join(f"{cut}: {db:.0f} dB" for cut, db in median_gains(p, worlds).items()) for p in plans)
        print("median channel gain by best cut: {}; {}".format(*gains))
        found += zip(pair, plans, strict=True)
    draw(found, arguments.folder / "best-cut.png")


if __name__ == "__main__":
    run_script(main)
