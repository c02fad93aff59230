"""The loss of a mini-batch and the gradients of the weights: computed step by step, or replayed from a recording."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .shared.generators import kept_torch
from .shared.nested import map_tensors, tensors_of

Loss = Callable[..., Tensor]
# Called with model, loss function, inputs and labels: leaves the gradients at the weights that train, which have none
# yet, and returns the loss.
Gradients = Callable[[nn.Module, Loss, Any, Tensor], Tensor]
# Runs what it is given, records what the device does, and returns what lets the device do the same again.
Record = Callable[[Callable[[], None]], Callable[[], object]]

# Before a GPU is recorded, its libraries choose and set up what they compute with.
WARM_UPS = 3


def compute_gradients(model: nn.Module, loss: Loss, inputs: Any, labels: Tensor) -> Tensor:
    """Compute the loss and the gradients of a mini-batch, see `Gradients`."""
    value = loss(model(inputs), labels)
    value.backward()
    return value.detach()


def cuda_graph(compute: Callable[[], None]) -> Callable[[], object]:
    """Record what a GPU does as a CUDA graph, see `Record`.

    Raises
    ------
    Exception
        What `compute` raises, as where it reads a number from the device, which can't be recorded.
    """
    outside, aside = torch.cuda.current_stream(), torch.cuda.Stream()
    aside.wait_stream(outside)
    with torch.cuda.stream(aside):
        for _ in range(WARM_UPS):
            compute()
    outside.wait_stream(aside)
    drawing = torch.cuda.default_generators[torch.cuda.current_device()]
    before = drawing.clone_state()
    graph, fault = torch.cuda.CUDAGraph(), None
    try:
        # Other threads may go on with the GPU meanwhile.
        with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
            try:
                compute()
            except Exception as error:
                fault = error
                raise
    except Exception as error:
        # PyTorch stays on its stream then, its generator stays that of the recording, and all that it says is that
        # there was a fault before.
        torch.cuda.set_stream(outside)
        drawing.graphsafe_set_state(before)
        raise fault or error from None
    return graph.replay


class RecordedGradients:
    """Records the gradients of the first whole mini-batch, and replays the recording for those after it.

    A replay is one call, where Python starts a hundred small operations. Mini-batches of another size are computed
    as ever. Python runs the model only to record it: so it must do the same operations each time, and read no number
    from the device. What is drawn follows the device's generator, as it does without a recording.

    Parameters
    ----------
    batch_size : int
        Examples of a whole mini-batch.
    record : Record (default: `cuda_graph`)
        How to record.
    """

    def __init__(self, batch_size: int, record: Record = cuda_graph) -> None:
        self._batch_size = batch_size
        self._record = record
        self._recording: _Recording | None = None

    def __call__(self, model: nn.Module, loss: Loss, inputs: Any, labels: Tensor) -> Tensor:
        """Leave the gradients at the weights, and return the loss; both hold until the next call."""
        if len(labels) != self._batch_size:
            return compute_gradients(model, loss, inputs, labels)
        if self._recording is None or not self._recording.suits(model, loss, inputs, labels):
            self._recording = None  # whose memory the next one may take
            self._recording = _Recording(model, loss, inputs, labels, self._record)
        return self._recording.replay(inputs, labels)


class _Recording:
    """A recording of one model, whose tensors stay where they are in memory, for mini-batches of one shape."""

    def __init__(self, model: nn.Module, loss: Loss, inputs: Any, labels: Tensor, record: Record) -> None:
        self._model, self._loss = model, loss
        self._layouts = _layouts(inputs, labels)
        self._inputs, self._labels = map_tensors(torch.clone, inputs), labels.clone()
        self._weights = _training(model)
        self._made: tuple[Tensor, list[Tensor | None]] | None = None
        # To record is not to train: statistics of BatchNorm stay, and so does what is drawn next.
        before = [buffer.clone() for buffer in model.buffers()]
        try:
            with kept_torch(labels.device):
                self._again = record(self._compute)
        finally:
            for buffer, values in zip(model.buffers(), before, strict=True):
                buffer.copy_(values)

    def suits(self, model: nn.Module, loss: Loss, inputs: Any, labels: Tensor) -> bool:
        """Return whether this is a recording of these."""
        same = model is self._model and loss == self._loss and _layouts(inputs, labels) == self._layouts
        return same and list(map(id, _training(model))) == list(map(id, self._weights))

    def replay(self, inputs: Any, labels: Tensor) -> Tensor:
        """Compute again, for another mini-batch."""
        for own, given in zip(tensors_of(self._inputs), tensors_of(inputs), strict=True):
            own.copy_(given)
        self._labels.copy_(labels)
        self._again()
        assert self._made is not None
        loss, gradients = self._made
        for weights, gradient in zip(self._weights, gradients, strict=True):
            weights.grad = gradient
        return loss

    def _compute(self) -> None:
        for weights in self._weights:
            weights.grad = None
        loss = compute_gradients(self._model, self._loss, self._inputs, self._labels)
        self._made = loss, [weights.grad for weights in self._weights]


def _training(model: nn.Module) -> list[nn.Parameter]:
    return [weights for weights in model.parameters() if weights.requires_grad]


def _layouts(inputs: Any, labels: Tensor) -> list[tuple[object, ...]]:
    return [(one.shape, one.stride(), one.dtype, one.device) for one in (*tensors_of(inputs), labels)]
