"""Personalisation: each client's head is fine-tuned, client block and body stay as they are (PHSFL, Section III-C)."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from espalier.clients.messages.arrays import to_record, to_weights
from espalier.clients.messages.cut import Cut
from espalier.clients.messages.split import Features, SplitFeatures
from espalier.clients.messages.train import NUM_EXAMPLES, Evaluate

from ..exchange import Exchanges
from ..screening import Failure, content_of, one_line, screen
from ..views import MemberGrid
from .labels import Labels
from .loop import Weights
from .server_block import Loss, channels_last, names_before, num_outputs


@dataclass(frozen=True)
class FineTuning:
    """How heads are fine-tuned.

    Parameters
    ----------
    num_steps : int
        SGD steps on every head, the paper's K.
    learning_rate : float
        The paper's eta~.
    """

    num_steps: int
    learning_rate: float


@dataclass(frozen=True)
class Personalised:
    """The clients' own heads and how well they do.

    Parameters
    ----------
    heads : Mapping[int, Mapping[str, Tensor]]
        Weights of the head by node id, in client order.
    metrics : Mapping[int, MetricRecord]
        Evaluation of the personalised model on the client's test set, by node id.
    failures : Sequence[Failure]
        Those who were left out.
    """

    heads: Mapping[int, Mapping[str, Tensor]]
    metrics: Mapping[int, MetricRecord]
    failures: Sequence[Failure] = field(default_factory=list)


def fine_tune_heads(
    model: nn.Sequential,
    arrays: ArrayRecord,
    cut_of: Callable[[int], Cut],
    cut_shapes: Mapping[int, tuple[int, ...]],
    labels: Labels,
    fine_tuning: FineTuning,
    grid: MemberGrid,
    loss: Loss = cross_entropy,
) -> Exchanges[Personalised]:
    """Fine-tune a head for every client of an edge and evaluate it, in two exchanges.

    Client block and body are frozen, in eval mode, so the activations of all K mini-batches fit one reply.

    Parameters
    ----------
    model : nn.Sequential
        Workspace on the device to compute on.
    arrays : ArrayRecord
        The whole trained model.
    cut_of : Callable[[int], Cut]
        Where the model is cut for a client, by its node id.
    cut_shapes : Mapping[int, tuple[int, ...]]
        By the number of blocks in front of the cut: the shape of one sample's activations behind it.
    labels : Labels
        Finds the labels, as in training.
    fine_tuning : FineTuning
        Steps and learning rate.
    grid : MemberGrid
        The edge's nodes.
    loss : Callable[[Tensor, Tensor], Tensor] (default: cross-entropy)
        Of outputs and labels, the mean over a mini-batch.
    """
    clients = grid.get_node_ids()
    failures = yield from labels.register(clients)
    known = [n for n in clients if n not in {failure.node_id for failure in failures}]
    weights: Weights = to_weights(arrays)
    model.load_state_dict(weights)
    model.eval()
    messages = [_ask(n, weights, model, cut_of(n), labels, fine_tuning) for n in known]
    heads: dict[int, dict[str, Tensor]] = {}
    for node_id, reply in zip(known, (yield messages), strict=True):
        try:
            features = Features.from_content(content_of(reply), label_policy=labels.policy)
            batches, targets = _checked(
                features, node_id, cut_shapes[cut_of(node_id).first], labels, model, fine_tuning
            )
            heads[node_id] = _fine_tune(model, cut_of(node_id), batches, targets, fine_tuning, loss)
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            failures.append(Failure(node_id, one_line(error)))

    messages = [Evaluate(to_record({**weights, **head})).to_message(node_id) for node_id, head in heads.items()]
    replies, bad = screen(messages, (yield messages), NUM_EXAMPLES)
    metrics = {
        node_id: MetricRecord({**next(iter(reply.content.metric_records.values()))})
        for node_id, reply in zip(heads, replies, strict=True)
        if not reply.has_error()
    }
    return Personalised(heads, metrics, [*failures, *bad])


def _ask(
    node_id: int, weights: Weights, model: nn.Sequential, cut: Cut, labels: Labels, fine_tuning: FineTuning
) -> Message:
    block = to_record({name: weights[name] for name in names_before(weights, model, cut)})
    return SplitFeatures(block, cut.first, fine_tuning.num_steps, labels.terms(node_id)).to_message(node_id)


def _checked(
    features: Features,
    node_id: int,
    cut_shape: tuple[int, ...],
    labels: Labels,
    model: nn.Sequential,
    fine_tuning: FineTuning,
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Return a client's activations and labels, a tensor of each for every step; ValueError for what does not fit."""
    batches = features.values
    for batch in batches:
        if tuple(batch.shape[1:]) != cut_shape:
            expected = ", ".join(map(str, cut_shape))
            raise ValueError(f"activations have shape {tuple(batch.shape)}, expected (N, {expected})")
    targets = torch.from_numpy(labels.find(node_id, features.numbers, num_outputs(model)))
    if len(batches) != fine_tuning.num_steps or sum(map(len, batches)) != len(targets):
        raise ValueError(f"{len(batches)} mini-batches with {len(targets)} labels for {fine_tuning.num_steps} steps")
    return batches, list(targets.split([len(batch) for batch in batches]))


def _fine_tune(
    model: nn.Sequential,
    cut: Cut,
    batches: Sequence[Tensor],
    targets: Sequence[Tensor],
    fine_tuning: FineTuning,
    loss: Loss,
) -> dict[str, Tensor]:
    """Make K SGD steps on a copy of the head and return its weights under their names in the model."""
    device = next(model.parameters()).device
    body, head = cut.server_side(model)[:-1], copy.deepcopy(model[-1]).requires_grad_(True)
    for batch, target in zip(batches, targets, strict=True):
        with torch.no_grad():
            features = body(channels_last(batch.to(device)))
        head.zero_grad()
        loss(head(features), target.to(device)).backward()
        # torch.optim's SGD does the same, but first imports PyTorch's compiler, which takes about a second.
        with torch.no_grad():
            for weights in head.parameters():
                if weights.grad is not None:
                    weights.sub_(weights.grad, alpha=fine_tuning.learning_rate)
    if not all(torch.isfinite(p).all() for p in head.parameters()):
        raise ValueError("the fine-tuned head holds NaN or Inf: lower fine-tune.rate")
    name = [name for name, _ in model.named_children()][-1]
    return {f"{name}.{key}": tensor.detach().cpu() for key, tensor in head.state_dict().items()}
