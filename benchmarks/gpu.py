"""What a GPU gives, and what the same bits each time cost there.

``python -m benchmarks.gpu`` trains `cnn` and ResNet-18 on 32x32 colour images with 2 clients, whole (FedAvg) and cut
after the first block (SFL-V1, `split.execution="fused"`), on the CPU with one thread and on the GPU: there as the app
does, with the same bits each time, and as PyTorch does by default, where bits may differ and convolutions round to
TF32. It prints milliseconds per mini-batch of 32 (median of 3 rounds, after a warm-up) and the CPU's over the GPU's; of
whole models also what the GPU takes with recorded gradients (`train.cuda-graph`). Then it trains `cnn` on the GPU with
100 clients that make 25 mini-batches a round, some of them side by side (`stack`), whole, cut, and cut on 4 edges
(HSFL), and prints mini-batches of clients per second. Pixels are random; no evaluation.
"""

import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch

from benchmarks.hierarchical import hierarchical_rounds, random_pixels
from espalier.app.config.parse import parse_config
from espalier.app.config.run_config import RunConfig
from espalier.app.ground.logs import quiet_flower
from espalier.app.ground.memory import keep_memory
from espalier.app.tasks.common import set_up_torch
from espalier.app.wiring.task_of_run import build_task

CLIENTS = 2
ROUNDS = 3
MANY_CLIENTS, BATCHES_OF_MANY, STACKS = 100, 25, (10, 100)
# Mini-batches of a client in a round: enough on a GPU, and not too many for ResNet-18 on a CPU.
BATCHES = {("cnn", "cpu"): 20, ("resnet18", "cpu"): 1, ("cnn", "cuda"): 50, ("resnet18", "cuda"): 10}


def main() -> None:
    """Measure and print."""
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU here")
    quiet_flower()
    print(torch.cuda.get_device_name())
    columns = f"{'GPU, recorded':>16}{'GPU, PyTorch default':>24}"
    print(f"{'ms per mini-batch':<22}{'CPU':>10}{'GPU':>10}{'CPU/GPU':>10}{columns}")
    with tempfile.TemporaryDirectory() as folder:
        pixels = {"data-dir": str(random_pixels(Path(folder))), "data.cache-dir": f"{folder}/cache"}
        keep_memory()
        for model in ("cnn", "resnet18"):
            for name, algorithm in (("whole", "fedavg"), ("cut", "sfl-v1")):
                on_cpu, on_gpu = (
                    settings(pixels, algorithm, model, device, CLIENTS, BATCHES[model, device])
                    for device in ("cpu", "cuda")
                )
                recorded = "-"
                if name == "whole":
                    on_gpu_recorded = parse_config(on_gpu.as_dict() | {"train.cuda-graph": True})
                    recorded = f"{milliseconds(on_gpu_recorded):.2f}"
                cpu, gpu, default = milliseconds(on_cpu), milliseconds(on_gpu), default_milliseconds(on_gpu)
                label = f"{model}, {name}"
                print(
                    f"{label:<22}{cpu:>10.2f}{gpu:>10.2f}{cpu / gpu:>10.1f}{recorded:>16}{default:>24.2f}", flush=True
                )
        print("\n" + f"{'mini-batches/s':<22}" + "".join(f"{f'stack = {stack}':>12}" for stack in STACKS))
        for name, algorithm in (("whole", "fedavg"), ("cut", "sfl-v1"), ("cut, 4 edges", "hsfl")):
            print(f"{f'cnn, {name}':<22}", end="", flush=True)
            for stack in STACKS:
                config = settings(pixels, algorithm, "cnn", "cuda", MANY_CLIENTS, BATCHES_OF_MANY, stack)
                print(f"{1e3 / milliseconds(config):>12.0f}", end="", flush=True)
            print()


def settings(
    pixels: dict[str, str],
    algorithm: str,
    model: str,
    device: str,
    clients: int,
    batches: int,
    stack: int = 0,
) -> RunConfig:
    """Return what a run is of."""
    return parse_config(
        {
            "algorithm": algorithm,
            "model": model,
            "device": device,
            "dataset": "image-folder",
            "partition": "iid",
            "num-clients": clients,
            **({"num-edges": 4, "edge-rounds": 1} if algorithm == "hsfl" else {}),
            "global-rounds": ROUNDS + 2,
            "local-epochs": 1,
            "batches-per-epoch": batches,
            "learning-rate": 0.01,
            "report.evaluate-every": 0,
            "engine": "in-process",
            "split.execution": "fused",
            "stack": stack,
            **pixels,
        }
    )


def milliseconds(config: RunConfig) -> float:
    """Return the time of a mini-batch as the app trains."""
    set_up_torch(config.device, config.train.torch_threads)
    return milliseconds_as_set_up(config)


def default_milliseconds(config: RunConfig) -> float:
    """Return the same with what PyTorch does by default on a GPU, for the config that `milliseconds` has just taken."""
    torch.set_deterministic_debug_mode("default")
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    return milliseconds_as_set_up(config)


def milliseconds_as_set_up(config: RunConfig) -> float:
    """Return the time of a mini-batch, the median over rounds after the first."""
    times = [time.perf_counter()]
    for _, _ in zip(
        range(ROUNDS + 1), hierarchical_rounds(config, build_task(config).new_model().state_dict()), strict=False
    ):
        times.append(time.perf_counter())
    per_round = config.federation.num_clients * config.train.batches_per_epoch
    return median(end - start for start, end in list(pairwise(times))[1:]) / per_round * 1e3


if __name__ == "__main__":
    main()
