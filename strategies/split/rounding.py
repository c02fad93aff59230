"""Mini-batches that come by messages, rounded as streams would have rounded them."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from espalier.clients.messages.frames import Feedback, Format, as_received

from .loop import longest_sample
from .serving import MiniBatch, Serve, Steps


def as_through_streams(serve: Serve, payload: str, dtype: torch.dtype) -> Serve:
    """Return what serves mini-batches that come by messages as if they, and the answers, came through streams."""
    if payload == "float32":
        return serve
    form, up, down = Format(payload, dtype), defaultdict[int, Feedback](Feedback), defaultdict[int, Feedback](Feedback)

    def rounded(tensor: Tensor) -> Tensor:
        return as_received(form, tensor.cpu())

    def fed_back(feedback: dict[int, Feedback], node_id: int, values: Tensor, samples: np.ndarray | None) -> Tensor:
        return as_received(form, feedback[node_id].added(form, values.cpu(), samples))

    def through_stream(batch: MiniBatch) -> MiniBatch:
        values = fed_back(up, batch.node_id, batch.activations, batch.samples)
        return replace(batch, activations=values, length=longest_sample(values) if batch.length else 0.0)

    def serve_rounded(batches: list[MiniBatch]) -> Steps:
        samples = {batch.node_id: batch.samples for batch in batches}
        steps = serve([through_stream(batch) for batch in batches])
        try:
            features = next(steps)
            while True:
                gradients = yield {n: rounded(values) for n, values in features.items()}
                features = steps.send({n: rounded(values) for n, values in gradients.items()})
        except StopIteration as over:
            return {
                n: g if isinstance(g, ValueError) else fed_back(down, n, g, samples[n]) for n, g in over.value.items()
            }

    return serve_rounded
