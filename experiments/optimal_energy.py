"""How little energy the RawHFL paper's problem takes at its optimum, and what changes that.

``python -m experiments.optimal_energy [FOLDER]`` solves every edge round of ten worlds as in the paper: four cells of
12 clients, Z = 4 selected in each, at most 2 of them again from the round before, at most 50 local rounds, theta = 0.4.
It prints joules per selected client and edge round at the paper's deadline and at shorter ones, with a lowest CPU
frequency, for several theta and noise figures, and what the same clients spend at full power, their highest frequency
and transmit power. Last it counts who is selected in a channel that never changes. FOLDER/optimal-energy.png is the
figure (default: the current folder).
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from espalier.app.ground.pictures import BLUE, GREY, ORANGE
from espalier.sim.world import World, make_world
from espalier.strategies.allocation import (
    Plan,
    Problem,
    Solver,
    cheapest_at_full_power,
    exact,
    h_fedavg_ub,
    make_plan,
)
from experiments.records import run_script

CELLS, CLIENTS_PER_CELL, SELECTED = 4, 12, 4
SEEDS, ROUNDS = range(10), 100
BITS_PER_LOCAL_ROUND = 10 * 32 * 43 * 32  # mini-batches, examples, features, bits
PAYLOAD_BITS = 219_648 * 33.0  # of the video caching model, a sign bit and 32 more for each number
DEADLINES_SECONDS = (150.0, 60.0, 20.0, 10.0, 5.0, 3.0, 2.0, 1.5, 1.0)
LOWEST_FREQUENCIES_HZ = (0.2e9, 0.5e9, 1e9)
THETAS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
NOISE_FIGURES_DB = (0.0, 5.0, 9.0)
# Joules in 400 edge rounds, mean and standard deviation over trials, and clients in each of them (Table II).
PAPER = {
    "RawHFL, Z = 2": (1508.33, 205.47, 8),
    "RawHFL, Z = 4": (2848.16, 273.85, 16),
    "RawHFL, Z = 6": (4137.94, 401.28, 24),
    "H-FedAvg-UB": (13836.46, 519.91, 48),
}
Rounds = Sequence[tuple[Problem, Plan]]


def draw_worlds(seeds: Sequence[int] = SEEDS, **parameters: object) -> list[World]:
    """Return the paper's world for each seed; the parameters are those of `espalier.sim.world.make_world`."""
    return [make_world((CLIENTS_PER_CELL,) * CELLS, seed, **parameters) for seed in seeds]


def solve_rounds(worlds: Sequence[World], solve: Solver = exact, rounds: int = ROUNDS, **changes: object) -> Rounds:
    """Return the problems and plans of edge rounds 1, 2, ..., each limited by who was selected in the one before.

    Cells do not touch each other, so the cells of all worlds are one problem.

    Parameters
    ----------
    worlds : Sequence[World]
        From `draw_worlds`.
    solve : Solver (default: exact)
        Makes the plans.
    rounds : int (default: 100)
        Number of edge rounds.
    **changes : object
        Fields of `Problem` that are not as in the paper.
    """
    values = {name: joined(worlds, name) for name in ("max_frequency_hz", "max_power_watts", "energy_budget_joules")}
    values |= {
        "cycles_per_local_round": BITS_PER_LOCAL_ROUND * joined(worlds, "cycles_per_bit"),
        "payload_bits": PAYLOAD_BITS,
        "clients_per_cell": SELECTED,
        "max_overlap": SELECTED // 2,
        "deadline_seconds": 150.0,
        "max_local_rounds": 50,
        "bandwidth_hz": worlds[0].radio.bandwidth_hz,
        "noise_watts": worlds[0].radio.noise_watts,
        "capacitance": float(worlds[0].devices.capacitance[0]),
        "theta": 0.4,
        "cell": np.concatenate([world.cells.cell + CELLS * i for i, world in enumerate(worlds)]),
    }
    solved, previous = [], None
    for edge_round in range(1, rounds + 1):
        gain = np.concatenate([world.gains(edge_round) for world in worlds])
        problem = Problem(**values | {"gain": gain, "previous": previous} | changes)
        plan = solve(problem)
        solved.append((problem, plan))
        previous = plan.selected
    return solved


def joined(worlds: Sequence[World], name: str) -> np.ndarray:
    """Return a quantity of the devices of all worlds."""
    return np.concatenate([getattr(world.devices, name) for world in worlds])


def at_full_power(rounds: Rounds) -> Rounds:
    """Return the rounds with the same clients and local rounds at their highest frequency and power, limits or not."""
    return [
        (
            problem,
            make_plan(
                problem,
                selected=plan.selected,
                local_rounds=plan.local_rounds,
                frequency_hz=problem.max_frequency_hz,
                power_watts=problem.max_power_watts,
                eligible=plan.eligible,
                reason=plan.reason,
            ),
        )
        for problem, plan in rounds
    ]


def everybody_at_full_power(rounds: Rounds) -> Rounds:
    """Return the rounds of H-FedAvg-UB in the same channels."""
    return [(problem, h_fedavg_ub(problem)) for problem, _ in rounds]


def of_selected(rounds: Rounds, name: str) -> np.ndarray:
    """Return an array of the plans, for the selected clients of all rounds."""
    return np.concatenate([getattr(plan, name)[plan.selected] for _, plan in rounds])


def never_selected(rounds: Rounds) -> float:
    """Return the share of clients that no round selects."""
    return float((selections(rounds) == 0).mean())


def selections(rounds: Rounds) -> np.ndarray:
    """Return how many rounds select each client."""
    return np.sum([plan.selected for _, plan in rounds], axis=0)


def with_spread(rounds: Rounds) -> str:
    """Return mean joules and their standard deviation over worlds."""
    world = np.concatenate([problem.cell[plan.selected] // CELLS for problem, plan in rounds])
    joules = of_selected(rounds, "joules")
    means = np.bincount(world, weights=joules) / np.bincount(world)
    return f"{joules.mean():.5f} +- {means.std():.5f}"


def print_references(optimum: Rounds) -> None:
    """Print the optimum's joules beside those at full power and the paper's."""
    rows = {
        "optimum": optimum,
        "the same plan at full power": at_full_power(optimum),
        "cheapest of each cell at full power": solve_rounds(draw_worlds(), cheapest_at_full_power),
        "everybody at full power (H-FedAvg-UB)": everybody_at_full_power(optimum),
    }
    print("deadline 150 s; joules per client and edge round, mean +- standard deviation over worlds")
    print(f"{'':<38}" + "".join(f"{head:>20}" for head in ("joules", "median", "computing alone", "seconds")))
    for name, rounds in rows.items():
        median, computing = np.median(of_selected(rounds, "joules")), of_selected(rounds, "compute_joules").mean()
        seconds = of_selected(rounds, "seconds").mean()
        print(f"{name:<38}{with_spread(rounds):>20}{median:>20.5f}{computing:>20.5f}{seconds:>20.1f}")
    for name, (joules, deviation, clients) in PAPER.items():
        print(f"{f'paper, {name}':<38}{f'{joules / 400 / clients:.3f} +- {deviation / 400 / clients:.3f}':>20}")
    published, _, clients = PAPER["RawHFL, Z = 4"]
    print(f"paper, Z = 4, over optimum: {published / 400 / clients / of_selected(optimum, 'joules').mean():.0f}")


def print_reasons(optimum: Rounds) -> None:
    """Print what a typical client's computing takes, fast and slow, and what its upload takes at the least."""
    who = np.concatenate([plan.selected for _, plan in optimum])
    cycles = np.median(50 * np.concatenate([problem.cycles_per_local_round[:, 0] for problem, _ in optimum])[who])
    gain = np.concatenate([problem.gain for problem, _ in optimum])[who]
    problem = optimum[0][0]
    slow, fast = np.median(of_selected(optimum, "compute_seconds")), cycles / np.median(problem.max_frequency_hz)
    print(f"\na typical selected client: A = {cycles:.3g} cycles, channel gain {np.median(gain):.2g}")
    for seconds in (fast, slow):
        joules = problem.capacitance / 2 * cycles**3 / seconds**2
        print(f"  computing in {seconds:5.2f} s: {cycles / seconds / 1e6:6.1f} MHz, {joules:.2g} J")
    floor = PAYLOAD_BITS * np.log(2) / problem.bandwidth_hz * problem.noise_watts / gain
    uploading = of_selected(optimum, "upload_joules").mean()
    print(f"  uploading, mean: {uploading:.5f} J, at least {floor.mean():.5f} J however long it takes")


def print_deadlines(worlds: Sequence[World]) -> list[float]:
    """Print the optimum at every deadline; return its mean joules."""
    heads = ("deadline", "joules", "median", "rounds", "selected", "eligible", "MHz", "uW", "full power")
    print("\nno lowest frequency; frequency and power are medians, the last column is the same plan at full power")
    print("".join(f"{head:>11}" for head in heads))
    means = []
    for deadline in DEADLINES_SECONDS:
        rounds = solve_rounds(worlds, deadline_seconds=deadline)
        joules = of_selected(rounds, "joules")
        means.append(float(joules.mean()))
        cells = (
            f"{deadline:g} s",
            f"{joules.mean():.5f}",
            f"{np.median(joules):.5f}",
            f"{of_selected(rounds, 'local_rounds').mean():.2f}",
            f"{joules.size / len(rounds) / len(worlds):.2f}/{CELLS * SELECTED}",
            f"{np.mean([plan.eligible.mean() for _, plan in rounds]):.1%}",
            f"{np.median(of_selected(rounds, 'frequency_hz')) / 1e6:.1f}",
            f"{np.median(of_selected(rounds, 'power_watts')) * 1e6:,.1f}",
            f"{of_selected(at_full_power(rounds), 'joules').mean():.3f}",
        )
        print("".join(f"{cell:>11}" for cell in cells))
    return means


def print_lowest_frequencies(worlds: Sequence[World], without: list[float]) -> dict[float, list[float]]:
    """Print mean joules by deadline and lowest frequency, and return them; `without` are those without one."""
    means = {0.0: without}
    for lowest in LOWEST_FREQUENCIES_HZ:
        sweep = (solve_rounds(worlds, deadline_seconds=t, min_frequency_hz=lowest) for t in DEADLINES_SECONDS)
        means[lowest] = [float(of_selected(rounds, "joules").mean()) for rounds in sweep]
    print("\njoules by deadline and lowest frequency")
    print(f"{'':>11}" + "".join(f"{f'{deadline:g} s':>9}" for deadline in DEADLINES_SECONDS))
    for lowest, joules in means.items():
        print(f"{f'{lowest / 1e9:g} GHz':>11}" + "".join(f"{j:>9.4f}" for j in joules))
    return means


def print_thetas(worlds: Sequence[World]) -> None:
    """Print local rounds and joules by theta, at the paper's deadline and at 2 s."""
    print(f"\n{'theta':>10}{'150 s: rounds':>16}{'joules':>10}{'2 s: rounds':>16}{'joules':>10}")
    for theta in THETAS:
        row = f"{theta:>10g}"
        for deadline in (150.0, 2.0):
            rounds = solve_rounds(worlds, deadline_seconds=deadline, theta=theta)
            joules = of_selected(rounds, "joules").mean()
            row += f"{of_selected(rounds, 'local_rounds').mean():>16.2f}{joules:>10.5f}"
        print(row)


def print_noise_figures() -> None:
    """Print the optimum and H-FedAvg-UB for base stations' receivers that are not ideal."""
    print(f"\n{'noise figure':>14}{'optimum':>10}{'everybody at full power':>26}")
    for noise_figure in NOISE_FIGURES_DB:
        rounds = solve_rounds(draw_worlds(noise_figure_db=noise_figure))
        full = of_selected(everybody_at_full_power(rounds), "joules").mean()
        print(f"{f'{noise_figure:g} dB':>14}{of_selected(rounds, 'joules').mean():>10.5f}{full:>26.3f}")


def print_selections(channels: dict[str, Rounds]) -> None:
    """Print the share of clients that are never selected, and how often the others are, by channel."""
    print(
        f"\n{'channel':>10}{'never selected':>16}   rounds in which a cell's most selected, second, ... client trains"
    )
    for name, rounds in channels.items():
        counts = " ".join(f"{count:.0f}" for count in by_rank(rounds))
        print(f"{name:>10}{never_selected(rounds):>16.1%}   {counts}")


def by_rank(rounds: Rounds) -> np.ndarray:
    """Return how often the most selected client of a cell is selected, the second, and so on: mean over cells."""
    return np.sort(selections(rounds).reshape(-1, CLIENTS_PER_CELL))[:, ::-1].mean(axis=0)


def draw(joules: dict[float, list[float]], channels: dict[str, Rounds], path: Path) -> None:
    """Draw joules against the deadline, and how often clients are selected."""
    figure = Figure(figsize=(10.0, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_joules(left, joules)
    for (name, rounds), shift, color in zip(channels.items(), (-0.2, 0.2), (BLUE, ORANGE), strict=True):
        places = np.arange(1, CLIENTS_PER_CELL + 1)
        right.bar(places + shift, by_rank(rounds), width=0.4, color=color, label=f"{name} channel")
    right.set(xlabel="clients of a cell, most selected first", ylabel=f"selected, of {ROUNDS} edge rounds")
    right.set_xticks(places)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", alpha=0.3)
        ax.set_axisbelow(True)
    left.legend(frameon=False, fontsize=8, loc="lower left")
    right.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def draw_joules(ax: Axes, joules: dict[float, list[float]]) -> None:
    """Draw a line per lowest frequency, and the paper's figures as a band."""
    published = [total / 400 / clients for name, (total, _, clients) in PAPER.items() if name.startswith("RawHFL")]
    ax.axhspan(min(published), max(published), color=GREY, alpha=0.5, lw=0, label="paper, RawHFL")
    colors = (BLUE, "#6d597a", "#b4c5a1", ORANGE)
    for (lowest, means), color, marker in zip(joules.items(), colors, "os^D", strict=True):
        label = f"optimum, {lowest / 1e9:g} GHz or more" if lowest else "optimum"
        ax.plot(DEADLINES_SECONDS, means, color=color, marker=marker, ms=4, label=label)
    ax.set(xscale="log", yscale="log", xlabel="deadline in seconds", ylabel="joules per client and edge round")
    ax.set_xticks(DEADLINES_SECONDS, [f"{deadline:g}" for deadline in DEADLINES_SECONDS])
    ax.minorticks_off()
    ax.yaxis.set_major_formatter("{x:g}")


def main() -> None:
    """Solve, print and draw."""
    parser = ArgumentParser(description="How little energy the RawHFL paper's problem takes at its optimum.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="of the figure, default: the current one")
    arguments = parser.parse_args()
    worlds = draw_worlds()
    channels = {"redrawn": solve_rounds(worlds), "static": solve_rounds(draw_worlds(redraw=False))}
    print_references(channels["redrawn"])
    print_reasons(channels["redrawn"])
    joules = print_lowest_frequencies(worlds, print_deadlines(worlds))
    print_thetas(worlds)
    print_noise_figures()
    print_selections(channels)
    draw(joules, channels, arguments.folder / "optimal-energy.png")


if __name__ == "__main__":
    run_script(main)
