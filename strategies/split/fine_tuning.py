"""Personalisation: each client's head is fine-tuned, client block and body stay as they are (PHSFL, Section III-B)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from espalier.clients.messages.head_tuning import Features, SplitFeatures, SplitHead
from espalier.clients.messages.labels import LabelTerms
from espalier.clients.messages.split_names import KEPT
from espalier.clients.messages.train import NUM_EXAMPLES, TOP, Evaluate
from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.cut import Cut
from espalier.clients.shared.head import fine_tuned
from espalier.clients.shared.tensor_array import record_by_reference
from espalier.clients.shared.text import quoted

from ..exchange import Exchanges
from ..outcomes import Failure
from ..replies import number_of, one_line, reason_of, record_of_metrics
from ..reply_faults import content_of
from ..screening import screen
from ..views import MemberGrid
from .cuts import block_names, num_outputs
from .evaluation import as_given, evaluate_through_cut, named_like
from .labels import Labels
from .loop import State
from .server_block import Loss
from .shapes import AtCut


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
        Weights of the head by node id, in client order; not of those whose heads never leave them.
    metrics : Mapping[int, MetricRecord]
        Evaluation of the personalised model on the client's test set, by node id.
    failures : Sequence[Failure]
        Those who were left out.
    """

    heads: Mapping[int, Mapping[str, Tensor]]
    metrics: Mapping[int, MetricRecord]
    failures: Sequence[Failure] = field(default_factory=list)

    def judged_by(self, figures: Iterable[str]) -> "Personalised":
        """Return the same, but that clients whose evaluation lacks one of these figures have failed in it.

        So have those that tell a top-M accuracy for what is no number M.
        """
        faults: dict[int, str] = {}
        for node_id, own in self.metrics.items():
            for name in figures:
                if number_of(own.get(name)) is None:
                    faults[node_id] = f"metric {name!r} is {quoted(own.get(name))}, expected a number"
            for name in own:
                if name.startswith(TOP) and not name.removeprefix(TOP).isdecimal():
                    faults[node_id] = f"metric {quoted(name)} is not known"
        metrics = {node_id: own for node_id, own in self.metrics.items() if node_id not in faults}
        return replace(self, metrics=metrics, failures=[*self.failures, *(Failure(*one) for one in faults.items())])


def fine_tune_heads(
    model: nn.Sequential,
    arrays: ArrayRecord,
    cut_of: Callable[[int], Cut],
    forms: Mapping[int, AtCut],
    labels: Labels,
    fine_tuning: FineTuning,
    grid: MemberGrid,
    loss: Loss = cross_entropy,
    *,
    evaluates_whole: bool,
) -> Exchanges[Personalised]:
    """Fine-tune a head for every client of an edge and evaluate it.

    Client block and body are frozen, in eval mode, so the activations of all K mini-batches fit one reply. The head of
    a client that has the model's last blocks is fine-tuned by the client, and stays there.

    Parameters
    ----------
    model : nn.Sequential
        Workspace on the device to compute on.
    arrays : ArrayRecord
        The whole trained model.
    cut_of : Callable[[int], Cut]
        Where the model is cut for a client, by its node id.
    forms : Mapping[int, AtCut]
        By the number of blocks in front of the cut: what activations are behind it.
    labels : Labels
        Finds the labels, as in training.
    fine_tuning : FineTuning
        Steps and learning rate.
    grid : MemberGrid
        The edge's nodes.
    loss : Callable[[Tensor, Tensor], Tensor] (default: cross-entropy)
        Of outputs and labels, the mean over a mini-batch.
    evaluates_whole : bool
        Evaluations send the whole model to those clients whose heads are here; else they go through the cut.
    """
    clients = grid.get_node_ids()
    with_tail = {node_id for node_id in clients if cut_of(node_id).has_tail(model)}
    failures = yield from labels.register([node_id for node_id in clients if node_id not in with_tail])
    unknown = {failure.node_id for failure in failures}
    known = [n for n in clients if n not in unknown]
    weights: State = to_weights(arrays)
    model.load_state_dict(weights)
    model.eval()
    terms = {n: LabelTerms(KEPT) if n in with_tail else labels.terms(n) for n in known}
    cuts = {cut_of(n) for n in known}
    fronts = {cut: to_record(named_like(cut.front(model), weights)) for cut in cuts}
    tails = {cut: to_record(named_like(cut.tail(model), weights)) for cut in cuts if cut.has_tail(model)}
    messages = [
        SplitFeatures(fronts[cut].copy(), cut.first, fine_tuning.num_steps, terms[n]).to_message(n)
        for n, cut in ((n, cut_of(n)) for n in known)
    ]
    heads: dict[int, dict[str, Tensor]] = {}
    asked: dict[int, Message] = {}
    dtype = next(model.parameters()).dtype
    for node_id, reply in zip(known, (yield messages), strict=True):
        cut = cut_of(node_id)
        try:
            features = Features.from_content(content_of(reply), label_policy=terms[node_id].policy)
            form, device = forms[cut.first], next(model.parameters()).device
            batches = as_given(features.values, features.lengths, form, dtype, device)
            if len(batches) != fine_tuning.num_steps:
                raise ValueError(f"{len(batches)} mini-batches for {fine_tuning.num_steps} steps")
            if node_id in with_tail:
                made = _through(cut.server_side(model), batches)
                features_of_head = [forms[cut.last].crossing.rows(values) for values in made]
                head = SplitHead(tails[cut].copy(), cut.last, features_of_head, fine_tuning.learning_rate)
                asked[node_id] = head.to_message(node_id)
            else:
                targets = _labels(node_id, features, labels, model)
                heads[node_id] = _fine_tune(model, cut, batches, targets, fine_tuning, loss)
        except torch.OutOfMemoryError:  # our own
            raise
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            failures.append(Failure(node_id, one_line(error)))
    answers = dict(zip(asked, (yield list(asked.values())), strict=True)) if asked else {}
    failures += [Failure(n, reason_of(reply.error)) for n, reply in answers.items() if reply.has_error()]
    have_own = {node_id for node_id, reply in answers.items() if not reply.has_error()}
    messages, replies = list[Message](), list[Message]()
    if through_cut := [n for n in known if n in have_own or (n in heads and not evaluates_whole)]:
        messages, replies = yield from evaluate_through_cut(
            model, weights, cut_of, forms, through_cut, heads=heads, own_heads=True
        )
    if evaluates_whole and heads:
        whole = _with_heads(weights, heads)
        messages, replies = [*messages, *whole], [*replies, *(yield whole)]
    metrics, bad = metrics_by_node(messages, replies)
    return Personalised(heads, {n: metrics[n] for n in known if n in metrics}, [*failures, *bad])


def metrics_by_node(
    messages: Sequence[Message], replies: Sequence[Message]
) -> tuple[dict[int, MetricRecord], list[Failure]]:
    """Return the metrics of evaluations, by node id, and a failure for each node whose reply is of no use."""
    screened, failures = screen(messages, replies, NUM_EXAMPLES)
    metrics = {
        message.metadata.dst_node_id: MetricRecord({**record_of_metrics(reply)})
        for message, reply in zip(messages, screened, strict=True)
        if not reply.has_error()
    }
    return metrics, failures


def _with_heads(weights: State, heads: Mapping[int, State]) -> list[Message]:
    """Return the messages that send each client the whole model with its head, to be evaluated."""
    body = to_record(weights)  # the same arrays for all: copies of whole models would be many
    models = {n: record_by_reference({**body, **to_record(head)}) for n, head in heads.items()}
    return [Evaluate(own).to_message(node_id) for node_id, own in models.items()]


@torch.no_grad()
def _through(body: nn.Module, batches: Sequence[Any]) -> list[Any]:
    """Return what blocks of the model make of activations."""
    return [body(batch) for batch in batches]


def _labels(node_id: int, features: Features, labels: Labels, model: nn.Sequential) -> Sequence[Tensor]:
    """Return the labels of a client's mini-batches; ValueError for what does not fit."""
    assert features.numbers is not None
    targets = torch.from_numpy(labels.find(node_id, features.numbers, num_outputs(model)))
    sizes = [len(batch) for batch in features.values]
    if sum(sizes) != len(targets):
        raise ValueError(f"{len(sizes)} mini-batches with {len(targets)} labels for {sum(sizes)} samples")
    return list(targets.split(sizes))


def _fine_tune(
    model: nn.Sequential,
    cut: Cut,
    batches: Sequence[Any],
    targets: Sequence[Tensor],
    fine_tuning: FineTuning,
    loss: Loss,
) -> dict[str, Tensor]:
    """Make K SGD steps on a copy of the head and return its weights under their names in the model."""
    device = next(model.parameters()).device
    inputs = _through(cut.server_side(model)[:-1], batches)
    pairs = zip(inputs, (target.to(device) for target in targets), strict=True)
    head = fine_tuned(model[-1], pairs, fine_tuning.learning_rate, loss)
    name = block_names(model)[-1]
    return {f"{name}.{key}": tensor.detach().cpu() for key, tensor in head.state_dict().items()}
