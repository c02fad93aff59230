"""A step of split training with a task of a user's own, before the run, beside the step that the whole model makes."""

from dataclasses import replace
from functools import partial
from math import isclose

import torch
from torch import Tensor, nn

from espalier.app.tasks.task import Task
from espalier.app.tasks.trial import CPU, MisfitError, Tried, named
from espalier.clients.gradients import compute_gradients
from espalier.clients.messages.frames import Format, as_received
from espalier.clients.messages.split_names import INDICES
from espalier.clients.shared.arrays import as_computed, as_travels
from espalier.clients.shared.cut import Cut, as_blocks, copied
from espalier.clients.shared.generators import seeded_torch
from espalier.clients.shared.nested import rows_on
from espalier.clients.split.session import Session, SessionTerms
from espalier.clients.task import ClientTask, LocalTraining
from espalier.clients.whole.training import make_optimizer, round_batches
from espalier.strategies.split.server_block import MiddleBlock, ServerBlock
from espalier.strategies.split.serving import MiniBatch
from espalier.strategies.split.shapes import check_activations, check_lengths, forms_at_cuts

# Largest difference of gradients, relative to the largest of all. They are the same to the bit but for rare layers.
TOLERANCE = 1e-3
TRIED = 256  # examples in parts
ONE_AFTER_THE_OTHER = (
    "one whose model computes what its blocks do, one after the other (a forward() or hooks of the model's own, and "
    "hooks of weights, are in no block; blocks_of(model, at) makes blocks of such a model)"
)


def check_blocks(model: nn.Sequential, example: object) -> None:
    """Raise MisfitError unless a model's blocks, one after the other, give what it gives; it is in eval mode then."""
    with torch.no_grad():
        whole, outputs = (_seeded(part.eval(), example) for part in (model, Cut(0, len(model)).server_side(model)))
    if not (
        isinstance(whole, Tensor)
        and whole.shape == outputs.shape
        and _are_close(whole, outputs, float(whole.abs().max()))
    ):
        raise MisfitError(ONE_AFTER_THE_OTHER)


def _seeded(model: nn.Module, example: object) -> Tensor:
    with seeded_torch(0, CPU):  # there are models that draw in evaluations too
        return model(example)


@torch.no_grad()
def loss_adds_up(task: Task, model: nn.Module) -> bool:
    """Return whether the loss of a mini-batch is the mean over its parts by their sizes, as of examples' own losses.

    With weights of classes, say, it is another mean. The parts tried are test examples with small and large labels.
    """
    pool = task.test_examples()
    rows = pool.labels.reshape(len(pool), -1)[:, 0].argsort(stable=True)[:: max(1, len(pool) // TRIED)]
    outputs = _seeded(model.eval(), task.normaliser()(rows_on(pool.inputs, rows, CPU)))
    first = len(rows) // 3
    whole, *parts = (
        float(task.objective.loss(outputs[part], pool.labels[rows[part]])) * len(rows[part])
        for part in (slice(None), slice(first), slice(first, None))
        if len(rows[part])
    )
    return isclose(whole, sum(parts), rel_tol=TOLERANCE)


def try_cut(tried: Tried, client: ClientTask, cut: Cut, form: Format | None) -> None:
    """Make the step of a client and its edge, and the same step with the whole model.

    Parameters
    ----------
    tried : Tried
        What is the user's own.
    client : ClientTask
        Has a new model, on the CPU, and the examples of one mini-batch. The model is spoilt then.
    cut : Cut
        Where the model is cut.
    form : Format, optional
        How activations and gradients travel in streams; None: in messages.

    Raises
    ------
    MisfitError
        If the step can't be made, or gives other gradients than the whole model has.
    """
    training = LocalTraining(batch_size=len(client.train), learning_rate=0.0)
    client, behind = replace(client, training=training), list(as_blocks(client.model)._modules)[cut.first - 1]
    with named("one whose model's layers can be copied", tried):
        start = copied(as_blocks(client.model))
    with named(f"one whose model trains where it is cut behind {behind!r}", tried):
        split = _split_gradients(replace(client, model=start), cut, None)
        if form is not None:
            _split_gradients(replace(client, model=start), cut, form)
    whole, draws = _whole_gradients(client)
    if draws:  # halves draw by themselves
        return
    most = max((float(gradient.abs().max()) for gradient in whole.values()), default=0.0)
    for name, gradient in whole.items():
        if name not in split or not _are_close(gradient, split[name], most):
            raise MisfitError(ONE_AFTER_THE_OTHER)


def _split_gradients(client: ClientTask, cut: Cut, form: Format | None) -> dict[str, Tensor]:
    """Return the gradients of a split step, by the names that the weights have in the whole model."""
    model, size, (batch,) = as_blocks(client.model), len(client.train), round_batches(client, 1, client.training)
    forms = forms_at_cuts(model, client.training_inputs(torch.zeros(1, dtype=torch.long), 1, 0))
    at_cut = forms[cut.first]
    make = partial(make_optimizer, training=client.training)
    server = (
        MiddleBlock(model, cut, make, crossing=at_cut.crossing, behind=forms[cut.last].crossing)
        if cut.has_tail(model)
        else ServerBlock(model, cut, make, crossing=at_cut.crossing, loss=client.objective.loss)
    )
    session = Session(client, SessionTerms(cut, server_round=1, label_policy=INDICES, local_epochs=1))
    forward = session.forward()
    sent, lengths = forward.values, None if forward.lengths is None else torch.from_numpy(forward.lengths).long()
    if sent.dim() < 2 or len(sent) != size:
        raise ValueError(f"activations of shape {tuple(sent.shape)} have no row for each of {size} examples")
    check_activations(sent, at_cut.shape, next(model.parameters()).dtype)
    check_lengths(lengths, sent, at_cut.crossing)
    steps = server.serve(MiniBatch(0, _received(form, sent), client.train.labels[batch], lengths=lengths))
    try:
        features = next(steps)
        steps.send(_received(form, session.at_tail(_received(form, features))))
    except StopIteration as over:
        gradient, _ = over.value
    session.backward(_received(form, gradient))
    halves = [session.front.blocks, server.blocks, *([session.tail.blocks] if session.tail else [])]
    return {name: p.grad for half in halves for name, p in half.named_parameters() if p.grad is not None}


def _whole_gradients(client: ClientTask) -> tuple[dict[str, Tensor], bool]:
    """Return those of the whole model for the same mini-batch, and whether something is drawn to compute them."""
    (batch,) = round_batches(client, 1, client.training)
    before = torch.default_generator.get_state()
    inputs, labels = client.training_inputs(batch, 1, 0), client.train.labels[batch]
    compute_gradients(client.model.train(), client.objective.loss, inputs, labels)
    draws = not torch.equal(before, torch.default_generator.get_state())
    return {name: p.grad for name, p in client.model.named_parameters() if p.grad is not None}, draws


def _received(form: Format | None, values: Tensor) -> Tensor:
    """Return values as the other side gets them."""
    return as_computed(as_travels(values)) if form is None else as_received(form, values)


def _are_close(values: Tensor, others: Tensor, scale: float) -> bool:
    return torch.equal(values, others) or torch.allclose(values, others, TOLERANCE, TOLERANCE * scale)
