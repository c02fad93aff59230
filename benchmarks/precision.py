"""What narrower numbers and channels-last images give, and what they cost in accuracy.

``python -m benchmarks.precision`` takes training steps of the built-in models on colour images of 32x32, on the CPU
with one thread and on the GPU where there is one, in turns, and prints the median milliseconds of a step, and how many
times faster it is than in float32. Then it trains on digits, 8 clients at Dir(0.3), with three seeds, and prints the
accuracies on the test pool.
"""

import time
from collections.abc import Callable
from statistics import fmean, median, stdev

import torch
from torch import nn

from espalier.app.ground.logs import quiet_flower
from espalier.app.tasks.common import set_up_torch
from espalier.app.tasks.models import build_model
from espalier.clients.gradients import compute_gradients
from espalier.clients.shared.arithmetic import Arithmetic
from experiments.runs import summary_of_run

MODELS = {"small-cnn": 32, "cnn": 32, "resnet18": 32, "resnet18-imagenet": 128}  # and the mini-batch
FORMS = {
    "float32": Arithmetic(),
    "channels last": Arithmetic(channels_last=True),
    "bfloat16": Arithmetic(in_bfloat16=True),
    "both": Arithmetic(in_bfloat16=True, channels_last=True),
}
ROUNDS = 9
RUN = {"algorithm": "fedavg", "num-clients": 8, "alpha": 0.3, "global-rounds": 20, "report.plots": False}
RUN |= {"engine": "in-process", "report.evaluate-every": 0}
OF_RUNS = {"float32": {}, "both": {"train.precision": "bfloat16", "train.channels-last": True}}


def main() -> None:
    """Measure and print."""
    quiet_flower()
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        print(f"| {device}, ms a step | {' | '.join(FORMS)}{' | tf32' if device == 'cuda' else ''} |")
        print(f"|---|{'---|' * (len(FORMS) + (device == 'cuda'))}")
        for name, batch in MODELS.items():
            steps = steps_of(name, batch, device)
            times = [[step() for step in steps] for _ in range(ROUNDS)]
            medians = [1e3 * median(column) for column in zip(*times[1:], strict=True)]
            cells = [f"{one:.1f} ({medians[0] / one:.2f})" for one in medians]
            print(f"| `{name}`, {batch} images | {' | '.join(cells)} |", flush=True)
        print()
    print("| digits, accuracy | 3 seeds |\n|---|---|")
    for name, own in OF_RUNS.items():
        runs = [summary_of_run({**RUN, **own, "seed": seed})["test"]["accuracy"] for seed in range(3)]
        print(f"| {name} | {fmean(runs):.4f}±{stdev(runs):.4f} |", flush=True)


def steps_of(name: str, batch: int, device: str) -> list[Callable[[], float]]:
    """Return training steps of a model in each form, which say how long they took."""
    draw = torch.Generator().manual_seed(0)
    inputs = torch.rand(batch, 3, 32, 32, generator=draw).to(device)
    labels = torch.randint(10, (batch,), generator=draw).to(device)

    def step_of(form: Arithmetic, precision: str) -> Callable[[], float]:
        model = form.of(build_model(name, image_shape=(3, 32, 32), num_classes=10, seed=0).to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step() -> float:
            set_up_torch(device, 1, precision)
            began = seconds_on(device)
            optimizer.zero_grad()
            compute_gradients(model, nn.functional.cross_entropy, inputs, labels)
            optimizer.step()
            return seconds_on(device) - began

        return step

    steps = [step_of(form, "float32") for form in FORMS.values()]
    return [*steps, step_of(Arithmetic(), "tf32")] if device == "cuda" else steps


def seconds_on(device: str) -> float:
    """Return the CPU time of this process, or the time when the GPU has done all."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
