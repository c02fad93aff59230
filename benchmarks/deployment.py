"""What a split step costs between processes: over the TLS stream, and as messages of a deployment on this machine.

``python -m benchmarks.deployment`` first has a client process exchange frames of 1.6 MB each way with a stream server
(median of 300, TLS, reading and checking included). Then it deploys on loopback (SuperLink with TLS, a SuperNode) and
trains the same step, `small-cnn` on 100 images of 32x32 cut after its first block, by messages and by stream. Then
SFL-V1 and CSE-FSL on the digits by messages: the first needs one for each mini-batch, the second one a round. Last,
PHSFL and H-FedAvg on the digits, 4 devices under 2 edge hosts, of which one reaches its devices by a message each in a
round and the other by streams that stay: wall time of an edge round as they saw it, and what a waiting device holds.
``python -m benchmarks.deployment edges`` does the last part alone; the others are called ``steps`` and ``losses``.
"""

import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "deploy"))  # its scripts import each other by their names

from flwr_run import descendants  # noqa: E402
from local import Federation, device_configs, federation, run_config, start_run, two_tiers, wait_for_end  # noqa: E402

from espalier.app.ground.certificates import self_signed  # noqa: E402
from espalier.clients.messages.frames import (  # noqa: E402
    Format,
    StreamTicket,
    pack,
    unpack_activations,
    unpack_gradient,
)
from espalier.clients.streams import open_stream  # noqa: E402
from espalier.strategies.split.stream import Connection, StreamServer  # noqa: E402
from tests.app.runs import run_app, same_weights  # noqa: E402
from tests.deploy.soak.resources import holdings, totals  # noqa: E402

SHAPE = (100, 16, 16, 16)  # float32: 1.6 MB
EXCHANGES = 300
FORM = Format()
TRANSPORTS: dict[str, dict[str, dict[str, Any]]] = {
    "phsfl": {"a message and a stream a round": {"split.transport": "stream"}, "stays": {"deploy.transport": "stream"}},
    "h-fedavg": {"messages": {}, "stays": {"deploy.transport": "stream"}},
}


def serve(connection: Connection) -> None:
    """Answer every frame with a gradient as large."""
    gradient = torch.randn(SHAPE)
    for step in range(EXCHANGES):
        frame, _ = connection.receive(time.monotonic() + 60)
        unpack_activations(FORM, frame, step=step, sample_shape=SHAPE[1:])
        connection.send(pack(FORM, gradient, step=step))


def exchange(fields: Mapping[str, Any]) -> float:
    """Send activations over a stream, step by step, and return the median of the seconds to the gradient."""
    ticket = StreamTicket(**{**fields, "certificate": fields["certificate"].encode()})
    activations, labels, seconds = torch.randn(SHAPE), torch.zeros(SHAPE[0], dtype=torch.int32), []
    with open_stream(ticket, 60.0) as stream:
        for step in range(EXCHANGES):
            started = time.perf_counter()
            answer = stream.exchange(pack(FORM, activations, step=step, num_steps=EXCHANGES, labels=labels))
            unpack_gradient(FORM, answer, step=step, shape=SHAPE)
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def stream_seconds() -> float:
    """Return the median seconds of an exchange over the stream with another process."""
    key, certificate = self_signed("127.0.0.1", days=1)
    largest = FORM.frame_bytes(SHAPE[0], SHAPE[1:])
    with StreamServer(key, certificate, address="127.0.0.1", max_frame_bytes=largest, max_streams=1) as server:
        ticket = server.expect(lambda connection: Thread(target=serve, args=(connection,), daemon=True).start())
        fields = {**vars(ticket.told), "certificate": certificate.decode()}
        command = [sys.executable, "-m", "benchmarks.deployment", "--client", json.dumps(fields)]
        return float(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def make_images(folder: Path) -> None:
    """Write 100 random images to train on and two to test on."""
    generator = np.random.default_rng(0)
    for pool, count in (("train", 50), ("test", 1)):
        for name in ("a", "b"):
            (folder / pool / name).mkdir(parents=True)
            for i in range(count):
                pixels = generator.integers(0, 256, (32, 32, 3), np.uint8)
                Image.fromarray(pixels).save(folder / pool / name / f"{i}.png")


def run(made: Federation, results: Path, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run the app on a deployment and return the lines of its edges."""
    run_id = start_run(ROOT, run_config({"output_dir": str(results), **settings}), made.environment)
    if (status := wait_for_end(run_id, made.environment, 600)) != "finished:completed":
        sys.exit(f"the run ended as {status}")
    return edge_lines(results)


def edge_lines(results: Path) -> list[dict[str, Any]]:
    """Return the lines of edges in a results folder."""
    every = map(json.loads, (results / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in every if line["scope"] == "edge"]


def step_seconds(folder: Path) -> dict[str, float]:
    """Return the seconds of a split step in a deployment with one device, by transport."""
    make_images(folder / "images")
    seconds = {}
    settings = {
        "algorithm": "sfl-v1",
        "dataset": "image-folder",
        "data_dir": str(folder / "images"),
        "model": "small-cnn",
        "num_clients": 1,
        "global_rounds": 2,
        "local_epochs": 1,
        "batch_size": SHAPE[0],
        "report.evaluate-every": 0,
        "fine-tune.steps": 0,
    }
    with federation(folder / "deployment", device_configs(range(1), 1)) as made:
        for transport, steps in (("messages", 4), ("stream", EXCHANGES)):
            how = {"split.transport": transport, "batches_per_epoch": steps}
            lines = run(made, folder / transport, settings | how)
            seconds[transport] = lines[-1]["seconds"] / steps
    return seconds


@dataclass(frozen=True)
class EdgeRound:
    """An edge round of an edge host with two devices.

    Attributes
    ----------
    seconds : float
        On average, as the edge host saw it.
    training_seconds : float
        So long its slower device trained in it.
    idle : dict
        What the processes of a device hold when the rounds are over, see `totals`.
    """

    seconds: float
    training_seconds: float
    idle: dict[str, dict[str, float]]


def edge_rounds(folder: Path, algorithm: str) -> tuple[dict[str, EdgeRound], bool]:
    """Run an algorithm on two edge hosts with two devices each, one of which reaches its devices by messages.

    Returns
    -------
    dict[str, EdgeRound], bool
        The edge rounds by transport, and whether the weights are those of the same run in this process.
    """
    settings = {
        "algorithm": algorithm,
        "num_clients": 4,
        "num_edges": 2,
        "global_rounds": 3,
        "edge_rounds": 1,
        "local_epochs": 1,
        "batches_per_epoch": 4,
        "batch_size": 16,
        "report.evaluate-every": 0,
        "fine-tune.steps": 0,
    }
    transports, results = TRANSPORTS[algorithm], folder / "results"

    def own_options(edge: int) -> list[str]:
        return run_config(list(transports.values())[edge])

    with two_tiers(ROOT, 4, 2, folder, run_config(settings), own_options) as cloud:
        run(cloud, results, settings | {"deploy.role": "cloud", "deploy.transport": "stream"})
        devices = [edge.supernodes[0].process.pid for edge in cloud.edges]
        idle = [totals(holdings([device, *descendants(device)])) for device in devices]
    with (results / "clients.csv").open(newline="", encoding="utf-8") as file:
        trained = [float(row["training_seconds"]) / settings["global_rounds"] for row in csv.DictReader(file)]
    rounds = {}
    for e, transport in enumerate(transports):
        lines = edge_lines(cloud.edges[e].folder / "results")
        seconds = statistics.fmean(line["seconds"] for line in lines)
        rounds[transport] = EdgeRound(seconds, max(trained[2 * e : 2 * e + 2]), idle[e])
    return rounds, same_weights(results, run_app(folder / "in-process", **settings))


def print_edge_rounds(folder: Path) -> None:
    """Measure edge rounds by each transport and print them, with what a device holds while it waits."""
    measured = {algorithm: edge_rounds(folder / algorithm, algorithm) for algorithm in TRANSPORTS}
    print("edge round, 2 devices each at 2 edge hosts   seconds  trained   beyond")
    for algorithm, (rounds, is_same) in measured.items():
        for transport, one in rounds.items():
            beyond = one.seconds - one.training_seconds
            print(f"{algorithm:10}{transport:33}{one.seconds:9.2f}{one.training_seconds:9.2f}{beyond:9.2f}")
        print(f"{algorithm:10}weights equal those in process: {'yes' if is_same else 'NO'}", flush=True)
    print("a device while it waits, h-fedavg          processes  threads       MB")
    for transport, one in measured["h-fedavg"][0].items():
        for program, held in one.idle.items():
            figures = f"{held['processes']:9.0f}{held['threads']:9.0f}{held['megabytes']:9.0f}"
            print(f"{transport:10}{program:33}{figures}")


def print_local_losses(folder: Path) -> None:
    """Measure a round of two devices by messages, with a gradient for each mini-batch and without any, and print it."""
    settings = {
        "num_clients": 2,
        "global_rounds": 2,
        "local_epochs": 1,
        "batches_per_epoch": 10,
        "batch_size": 16,
        "report.evaluate-every": 0,
        "fine-tune.steps": 0,
    }
    print("a round of 10 mini-batches, 2 devices, by messages  seconds")
    with federation(folder / "deployment", device_configs(range(2), 2)) as made:
        for algorithm, more in (("sfl-v1", {}), ("cse-fsl", {"split.upload-every": 5})):
            own = settings | more | {"algorithm": algorithm}
            lines = run(made, folder / algorithm, own)
            is_same = same_weights(folder / algorithm, run_app(folder / f"{algorithm}-in-process", **own))
            says = f"{algorithm}, weights equal those in process: {'yes' if is_same else 'NO'}"
            print(f"{says:50}{lines[-1]['seconds']:9.2f}", flush=True)


def print_steps(folder: Path) -> None:
    """Measure split steps and print them."""
    exchanged, steps = stream_seconds(), step_seconds(folder)
    print(f"1.6 MB each way over the TLS stream, median    {1000 * exchanged:8.1f} ms")
    print(f"the same step by messages                      {1000 * steps['messages']:8.1f} ms")
    print(f"ratio                                          {steps['messages'] / exchanged:8.0f}")
    print(f"training step by stream, all of the round      {1000 * steps['stream']:8.1f} ms")
    print(f"ratio                                          {steps['messages'] / steps['stream']:8.0f}")


PARTS = {"steps": print_steps, "losses": print_local_losses, "edges": print_edge_rounds}


def main() -> None:
    """Measure and print the parts that are named, or all."""
    if unknown := set(sys.argv[1:]) - PARTS.keys():
        sys.exit(f"error: {', '.join(sorted(unknown))}: allowed is {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory(prefix="flwr-") as temporary:
        for part in sys.argv[1:] or PARTS:
            PARTS[part](Path(temporary) / part)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        print(exchange(json.loads(sys.argv[2])))
    else:
        main()
