"""The client's part of what comes beside training a split model: evaluation through the cut, and heads of its own."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from torch import Tensor, nn

from ..half import Handler
from ..messages.head_tuning import Features, SplitFeatures, SplitHead
from ..messages.split_evaluation import EvaluateFront, EvaluateOutputs, TestActivations
from ..messages.split_names import EVALUATE_FRONT, EVALUATE_OUTPUTS, SPLIT_FEATURES, SPLIT_HEAD
from ..shared.arrays import record_of, to_record, to_weights
from ..shared.crossing import ROWS, parts_of
from ..shared.cut import Cut, as_blocks
from ..shared.head import fine_tuned
from ..shared.nested import rows_on
from ..task import ClientTask, Examples
from ..whole.evaluation import BATCH_SIZE, evaluated, figures_of, outputs_on, top_accuracies_of
from ..whole.tuning import fine_tuning_batches
from .crossings import front_crossing, tail_crossing
from .registered_labels import check_registered, label_numbers

# Record of a node's state: the head that the client fine-tuned, which never leaves it.
OWN_HEAD = "own-head"


@torch.no_grad()
def fine_tuning_features(message: Message, context: Context, task: ClientTask) -> Message:
    """Answer ``train.split_features``: the activations of mini-batches for fine-tuning a head, all in one reply.

    The client block is frozen, in eval mode; ``num-steps`` mini-batches are drawn as for a round of their own.
    """
    asked = SplitFeatures.from_content(message.content)
    check_registered(context, task, asked.labels)
    block = _first_blocks(task, asked.cut)
    block.load_state_dict(to_weights(asked.block))
    block.eval()
    batches = fine_tuning_batches(task, asked.num_steps)
    outputs = [block(task.prepare(rows_on(task.train.inputs, batch, task.device))) for batch in batches]
    rows, lengths = _as_rows(task, asked.cut, outputs, list(map(len, batches)))
    policy = asked.labels.policy
    features = Features(rows, policy, label_numbers(torch.cat(batches), task, policy), len(task.train), lengths)
    return Message(features.to_content(), reply_to=message)


def fine_tune_head(message: Message, context: Context, task: ClientTask) -> Message:
    """Answer ``train.split_head``: fine-tune the head on the device, and keep it in the node's state."""
    asked = SplitHead.from_content(message.content)
    tail = _last_blocks(task, asked.tail)
    tail.load_state_dict(to_weights(asked.block))
    tail.eval()
    labels = [task.train.labels[batch].to(task.device) for batch in fine_tuning_batches(task, len(asked.features))]
    with torch.no_grad():
        inputs = [tail[:-1](features) for features in _as_whole(task, asked.tail, asked.features)]
    pairs = zip(inputs, labels, strict=True)
    head = fine_tuned(tail[-1], pairs, asked.learning_rate, task.objective.loss)
    context.state[OWN_HEAD] = to_record(head.state_dict())
    return Message(RecordDict(), reply_to=message)


@torch.inference_mode()
def evaluation_activations(message: Message, context: Context, task: ClientTask) -> Message:
    """Answer ``evaluate.split_front``: the activations of the test set, then of what is held back from training."""
    asked = EvaluateFront.from_content(message.content)
    block = _first_blocks(task, asked.cut)
    block.load_state_dict(to_weights(asked.block))
    parts = [task.test] if task.validation is None else [task.test, task.validation]
    outputs = [batch for part in parts for batch in outputs_on(block, part, task.prepare, task.device)]
    sizes = [size for part in parts for size in _batch_sizes(len(part))]
    return Message(TestActivations(*_as_rows(task, asked.cut, outputs, sizes)).to_content(), reply_to=message)


@torch.inference_mode()
def evaluate_outputs(message: Message, context: Context, task: ClientTask) -> Message:
    """Answer ``evaluate.split_outputs``: the figures of what the edge's blocks, and the tail, made of the test set."""
    asked = EvaluateOutputs.from_content(message.content)
    outputs = [values.to(task.device) for values in asked.outputs]
    if asked.tail is not None and asked.block is not None:
        outputs = _through_tail(task, context, asked, outputs)
    num_batches = -(-len(task.test) // BATCH_SIZE)  # none has examples of both
    outputs, rest = outputs[:num_batches], outputs[num_batches:]
    figures = _figures(outputs, task.test, task, "test")
    held_back = {} if task.validation is None else _figures(rest, task.validation, task, "validation")
    shares = top_accuracies_of(torch.cat(outputs), task) if task.top_m and outputs else [0.0] * len(task.top_m)
    return Message(evaluated(task, figures, held_back, shares).to_content(), reply_to=message)


EVALUATION: Mapping[str, Handler] = {
    SPLIT_FEATURES: fine_tuning_features,
    SPLIT_HEAD: fine_tune_head,
    EVALUATE_FRONT: evaluation_activations,
    EVALUATE_OUTPUTS: evaluate_outputs,
}


def _figures(outputs: list[Tensor], examples: Examples, task: ClientTask, what: str) -> dict[str, float]:
    if sum(map(len, outputs)) != len(examples):
        raise ValueError(f"{sum(map(len, outputs))} outputs for {len(examples)} {what} examples")
    return figures_of(outputs, examples.labels, task.device, task.objective)


def _first_blocks(task: ClientTask, cut: int) -> nn.Sequential:
    model = as_blocks(task.model)
    return Cut.of(model, cut).front(model)


def _last_blocks(task: ClientTask, tail: int) -> nn.Sequential:
    model = as_blocks(task.model)
    return Cut.of(model, Cut(0, tail)).tail(model)


def _through_tail(task: ClientTask, context: Context, asked: EvaluateOutputs, features: list[Tensor]) -> list[Tensor]:
    assert asked.block is not None
    assert asked.tail is not None
    tail = _last_blocks(task, asked.tail)
    tail.load_state_dict(to_weights(asked.block), strict=not asked.own_head)
    if asked.own_head:
        tail[-1].load_state_dict(to_weights(record_of(context.state, OWN_HEAD)))
    tail.eval()
    return [tail(batch) for batch in _as_whole(task, asked.tail, features)]


def _batch_sizes(num_examples: int) -> list[int]:
    """Return how many examples are in the batches of an evaluation."""
    return [min(BATCH_SIZE, num_examples - start) for start in range(0, num_examples, BATCH_SIZE)]


def _as_rows(
    task: ClientTask, first: int, outputs: Sequence[Any], sizes: Sequence[int]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return what the first blocks gave for batches of these sizes as rows, and the lengths where there are some."""
    crossing = front_crossing(task, first, outputs[0], sizes[0]) if outputs else ROWS
    lengths = [lengths for _, lengths in map(parts_of, outputs) if lengths is not None]
    return [crossing.rows(output) for output in outputs], lengths


def _as_whole(task: ClientTask, tail: int, features: Sequence[Tensor]) -> Iterator[Any]:
    """Yield what comes into the tail as it does where the model is whole."""
    crossing = tail_crossing(task, tail, features[0]) if features else ROWS
    for batch in features:
        yield crossing.given(batch.to(task.device))
