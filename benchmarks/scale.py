"""How a round's time and the memory grow with the clients and the edges.

``python -m benchmarks.scale`` runs the app in process, FedAvg under FedAvg, with more and more clients on few and on
many edges, each in a process of its own. A client has 8 examples of 16 features and makes one step of SGD on a linear
model, so nearly all of the time is the framework's: selecting, messages, checks, averages, metrics, the saved state.
It prints CPU milliseconds per global round of one edge round, without evaluation, the same per client that trains, and
CPU seconds for all that is done once (data, the evaluation at the end, the tables), and the largest resident memory.
Where all clients train, all are evaluated at the end; where fewer do, none is.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from resource import RUSAGE_SELF, getrusage

import torch
from torch import nn

from espalier.app.command_line import main as run_app
from espalier.app.tasks.own import OwnTask
from espalier.clients.task import Examples

# Clients, edges, and how many clients train in a round.
SIZES = [(10, 10, 10), (100, 10, 100), (1_000, 10, 1_000), (10_000, 10, 10_000), (10_000, 1_000, 10_000)]
SIZES += [(10_000, 10, 100)] + [(clients, 1_000, 1_000) for clients in (1_000, 10_000, 100_000, 1_000_000)]
ROUNDS = 3  # to measure, after the first


class Tiny(OwnTask):
    """A linear model, and a few random examples for every client."""

    def model(self) -> nn.Module:
        """Return a model of 16 features and 4 classes."""
        return nn.Linear(16, 4)

    def client_data(self, client: int, num_clients: int, seed: int) -> tuple[Examples, Examples]:
        """Return 8 examples to train on and one to test on."""
        draw = torch.Generator().manual_seed(seed * num_clients + client)
        features, labels = torch.randn(9, 16, generator=draw), torch.randint(4, (9,), generator=draw)
        return Examples(features[:8], labels[:8]), Examples(features[8:], labels[8:])

    def num_examples(self, client: int, num_clients: int, seed: int) -> tuple[int, int]:
        """Return the numbers of `client_data`."""
        return 8, 1

    def test_data(self) -> Examples:
        """Return the server's 100 examples."""
        draw = torch.Generator().manual_seed(0)
        return Examples(torch.randn(100, 16, generator=draw), torch.randint(4, (100,), generator=draw))


def main() -> None:
    """Measure every size and print the table."""
    header = (
        f"{'clients':>10}{'edges':>8}{'train':>8}{'ms/round':>12}{'ms/client':>12}{'once, s':>10}{'memory, MB':>12}"
    )
    print(header, flush=True)
    for clients, edges, training in SIZES:
        command = [sys.executable, "-m", "benchmarks.scale", str(clients), str(edges), str(training)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        per_round, once, memory_bytes = json.loads(done.stdout)
        milliseconds, megabytes = per_round * 1e3, memory_bytes / 1e6
        row = f"{milliseconds:>12,.0f}{milliseconds / training:>12.2f}{once:>10.1f}{megabytes:>12,.0f}"
        print(f"{clients:>10,}{edges:>8,}{training:>8,}{row}", flush=True)


def measure(clients: int, edges: int, training: int) -> tuple[float, float, int]:
    """Return CPU seconds per round, CPU seconds of the rest of a run, and the largest resident memory in bytes."""
    cpu_seconds(10, 10, 10, 1)  # imports and caches are warm after it
    one, more = (cpu_seconds(clients, edges, training, rounds) for rounds in (1, 1 + ROUNDS))
    per_round = (more - one) / ROUNDS
    return per_round, one - per_round, getrusage(RUSAGE_SELF).ru_maxrss * 1024


def cpu_seconds(clients: int, edges: int, training: int, rounds: int) -> float:
    """Return the CPU time of a run of the app."""
    settings = {
        "task": "benchmarks.scale:Tiny",
        "num-clients": clients,
        "num-edges": edges,
        "edge-rounds": 1,
        "global-rounds": rounds,
        "local-epochs": 1,
        "batch-size": 8,
        "participation": training / clients,
        "report.evaluate-every": 0,
        "report.evaluate-clients": 1.0 if training == clients else 0.0,
        "report.plots": False,
    }
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        began = time.process_time()
        arguments = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        if run_app([*arguments, f"output-dir={folder}/run"]):
            sys.exit("the run failed; standard error says why")
        return time.process_time() - began


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(*map(int, sys.argv[1:]))))
    else:
        main()
