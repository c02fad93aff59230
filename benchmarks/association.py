"""How far associations of clients with edges are from the optimum, by the cost of a global round.

``python -m benchmarks.association --csv PATH`` draws instances of six clients and two or three edges with HFEL's cost,
tries all associations of each, and prints how far "nearest", "balanced" and "cheapest" stay above the best one.
"""

import platform
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from espalier.app.reports.made_by import maker
from espalier.strategies.allocation.association import ASSOCIATIONS, Association, all_associations, optimum
from experiments.records import write_rows

INSTANCES, CLIENTS, EDGES = 20, 6, (2, 3)
COLUMNS = {
    "clients": int,
    "edges": int,
    "seed": int,
    "optimum": float,
    **dict.fromkeys(ASSOCIATIONS, float),
    "commit": str,
    "machine": str,
}

Row = dict[str, Any]


def instance(clients: int, edges: int, seed: int) -> Association:
    """Return clients and edges at random places in a square of 500 m: 10 MHz for each edge, path loss exponent 4."""
    rng = np.random.default_rng(seed)
    places, stations = rng.uniform(0, 500, (clients, 1, 2)), rng.uniform(0, 500, (1, edges, 2))
    gain = np.maximum(np.linalg.norm(places - stations, axis=2), 10.0) ** -4.0
    power = rng.uniform(0.1, 0.5, clients)
    rate = 10e6 * np.log1p(gain * power[:, np.newaxis] / 1e-12)
    return Association(
        cycles=5 * rng.uniform(30, 100, clients) * rng.uniform(0.5, 2, clients) * 1e6,
        upload_seconds=1e6 / rate,
        power_watts=power,
        max_frequency_hz=rng.uniform(1e9, 2e9, clients),
        capacitance=2e-28,
        edge_rounds=5,
        cloud_seconds=rng.uniform(0.1, 0.5, edges),
        cloud_joules=rng.uniform(0.05, 0.2, edges),
        energy_weight=float(rng.uniform(0.2, 0.8)),
        delay_weight=float(rng.uniform(0.2, 0.8)),
    )


def row_of(clients: int, edges: int, seed: int) -> Row:
    """Return an instance's row: the least cost, and how much more each association costs, as a share of it."""
    problem = instance(clients, edges, seed)
    best = float(optimum(problem, all_associations(clients, edges)).cost.min())
    found = np.array([associate(problem) for associate in ASSOCIATIONS.values()])
    gaps = optimum(problem, found).cost / best - 1
    return {
        "clients": clients,
        "edges": edges,
        "seed": seed,
        "optimum": float(f"{best:.6g}"),
        **{name: float(f"{max(0.0, gap):.4f}") for name, gap in zip(ASSOCIATIONS, gaps.tolist(), strict=True)},
        "commit": maker()["commit"],
        "machine": platform.processor() or platform.machine(),
    }


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the docs' table."""
    yield "| clients | edges | instances | association | mean gap | largest | optimal |"
    yield "|---|---|---|---|---|---|---|"
    for clients, edges in sorted({(row["clients"], row["edges"]) for row in rows}):
        own = [row for row in rows if (row["clients"], row["edges"]) == (clients, edges)]
        for name in ASSOCIATIONS:
            gaps = np.array([row[name] for row in own])
            shown = f"{gaps.mean():.1%} | {gaps.max():.1%} | {(gaps == 0).sum()}"
            yield f"| {clients} | {edges} | {len(own)} | `{name}` | {shown} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Solve all instances, write their rows and print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args(arguments)
    rows = [row_of(CLIENTS, edges, seed) for edges in EDGES for seed in range(INSTANCES)]
    if given.csv:
        write_rows(given.csv, COLUMNS, rows)
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
