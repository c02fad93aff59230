"""What training on distinct rows saves on the video-caching task.

``python benchmarks/caching.py`` trains the paper's network on one UE's requests, 500 mini-batches of 32, in turns as a
plain loop (autograd and `torch.optim.SGD` on the features of every example) and with `unique_row_sgd`, for v_u = 0.3
and 0.7. The network has been trained on 12 other UEs before. It prints microseconds per step of both (best of 5), their
ratio, and the largest difference between the weights they end with, in float32 and in float64. In float32 a unit whose
input is nearly zero may be on in one loop and off in the other; how far the plain loop in float32 is from itself in
float64 is printed for comparison. One thread.
"""

import copy
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from espalier.app.tasks.caching_data import CachingData, caching_clients, caching_mlp, num_slots
from espalier.clients.randomness import client_generator
from espalier.clients.task import LocalTraining
from espalier.clients.whole.training import mini_batches
from espalier.clients.whole.unique_rows import unique_row_sgd

TRAINING = LocalTraining(local_epochs=50, batches_per_epoch=10, batch_size=32, learning_rate=0.01)
REPEATS = 5
Train = Callable[[nn.Module, CachingData, Sequence[Tensor]], float]


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    for exploitation in (0.3, 0.7):
        measure(caching_clients(0, 13, num_slots(400), exploitation=exploitation), exploitation)


def measure(clients: list[CachingData], exploitation: float) -> None:
    """Print the figures for the first client, after one round of all the others."""
    model = caching_mlp(0)
    data, *others = clients
    for i, other in enumerate(others, 1):
        distinct_rows(model, other, batches_of(other, i))
    batches = batches_of(data, 0)
    seconds: dict[Train, list[float]] = {plain_loop: [], distinct_rows: []}
    for _ in range(REPEATS):
        for train, times in seconds.items():
            times.append(timed(train, copy.deepcopy(model), data, batches))
    plain, ours = (min(times) / len(batches) * 1e6 for times in seconds.values())
    rows = sum(len(data.train.inputs[batch].unique()) for batch in batches) / len(batches)
    print(f"v = {exploitation}: {len(data.train)} examples, {rows:.1f} distinct rows per mini-batch")
    print(f"  plain loop     {plain:7.1f} us/step")
    print(f"  distinct rows  {ours:7.1f} us/step")
    print(f"  ratio          {plain / ours:7.1f}")
    weights = {
        (train, dtype): trained(train, copy.deepcopy(model).to(dtype), data, batches, dtype)
        for train in seconds
        for dtype in (torch.float32, torch.float64)
    }
    single, double = ((weights[plain_loop, t], weights[distinct_rows, t]) for t in (torch.float32, torch.float64))
    print(f"  largest difference between the weights: {difference(*single):.1e}, in float64 {difference(*double):.1e}")
    print(f"  plain loop, float32 and float64:        {difference(single[0], double[0]):.1e}")


def batches_of(data: CachingData, client: int) -> list[Tensor]:
    """Return the mini-batches of one edge round."""
    return list(mini_batches(len(data.train), TRAINING, client_generator(0, client, 1, "batches")))


def plain_loop(model: nn.Module, data: CachingData, batches: Sequence[Tensor]) -> float:
    """Train as one usually does, and return the mean loss."""
    features, labels = data.table[data.train.inputs], data.train.labels
    optimizer = torch.optim.SGD(model.parameters(), lr=TRAINING.learning_rate)
    total, seen = torch.zeros(()), 0
    for batch in batches:
        loss = cross_entropy(model(features[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(batch)
        seen += len(batch)
    return float(total) / seen


def distinct_rows(model: nn.Module, data: CachingData, batches: Sequence[Tensor]) -> float:
    """Train on distinct rows, and return the mean loss."""
    return unique_row_sgd(model, data.table, data.train.inputs, data.train.labels, batches, TRAINING.learning_rate)


def timed(train: Train, model: nn.Module, data: CachingData, batches: Sequence[Tensor]) -> float:
    """Return the seconds it takes."""
    began = time.perf_counter()
    train(model, data, batches)
    return time.perf_counter() - began


def trained(
    train: Train, model: nn.Module, data: CachingData, batches: Sequence[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    """Return the weights after training in a type of number."""
    data = CachingData(data.table.to(dtype), data.train, data.train_slots, data.test)
    train(model, data, batches)
    return [parameter.detach().double() for parameter in model.parameters()]


def difference(left: list[Tensor], right: list[Tensor]) -> float:
    """Return the largest difference between two sets of weights."""
    return max(float((a - b).abs().max()) for a, b in zip(left, right, strict=True))


if __name__ == "__main__":
    main()
