"""Evaluation through the cut: activations of test sets come up, outputs go down, figures are the clients' to make.

With a tail the features go down. No client gets other blocks than its own, and no label comes up.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from flwr.app import ArrayRecord, Error, Message
from torch import Tensor, nn

from espalier.clients.messages.split_evaluation import EvaluateFront, EvaluateOutputs, TestActivations
from espalier.clients.shared.arrays import to_record
from espalier.clients.shared.crossing import ROWS
from espalier.clients.shared.cut import Cut

from ..exchange import REJECTED, Exchanges
from ..replies import one_line
from ..reply_faults import content_of
from .loop import State
from .shapes import AtCut, check_activations, check_lengths


def evaluate_through_cut(
    model: nn.Sequential,
    weights: State,
    cut_of: Callable[[int], Cut],
    forms: Mapping[int, AtCut],
    clients: Sequence[int],
    *,
    heads: Mapping[int, State] | None = None,
    own_heads: bool = False,
) -> Exchanges[tuple[list[Message], list[Message]]]:
    """Evaluate a model on clients in two exchanges; return the first one's messages and a reply to each.

    The replies are those to `Evaluate`: metrics, or an error.

    Parameters
    ----------
    model : nn.Sequential
        Workspace on the device to compute on.
    weights : State
        Of the whole model.
    cut_of : Callable[[int], Cut]
        Where the model is cut for a client, by its node id.
    forms : Mapping[int, AtCut]
        By the number of blocks in front of the cut: what activations are behind it.
    clients : Sequence[int]
        Node ids.
    heads : Mapping[int, State], optional (default: None)
        Weights of heads that the edge fine-tuned, by node id, to be taken for the model's.
    own_heads : bool (default: False)
        Clients with a tail take the heads that they fine-tuned.
    """
    cuts = {node_id: cut_of(node_id) for node_id in clients}
    fronts = {cut: to_record(named_like(cut.front(model), weights)) for cut in set(cuts.values())}
    tails: dict[Cut, ArrayRecord] = {}
    asked = [EvaluateFront(fronts[cut].copy(), cut.first).to_message(node_id) for node_id, cut in cuts.items()]
    replies = dict(zip(clients, (yield asked), strict=True))
    messages: dict[int, Message] = {}
    for message, (node_id, cut) in zip(asked, cuts.items(), strict=True):
        try:
            sent = TestActivations.from_content(content_of(replies[node_id]))
            made = _outputs(model, {**weights, **(heads or {}).get(node_id, {})}, cut, sent, forms[cut.first])
            behind = forms[cut.last].crossing if cut.has_tail(model) else ROWS
            outputs = [behind.rows(values) for values in made]
        except torch.OutOfMemoryError:  # our own
            raise
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            replies[node_id] = Message(Error(REJECTED, one_line(error)), reply_to=message)
            continue
        if not cut.has_tail(model):
            messages[node_id] = EvaluateOutputs(outputs).to_message(node_id)
            continue
        if cut not in tails:
            tail = cut.tail(model)[:-1] if own_heads else cut.tail(model)
            tails[cut] = to_record(named_like(tail, weights))
        messages[node_id] = EvaluateOutputs(outputs, tails[cut].copy(), cut.last, own_heads).to_message(node_id)
    replies |= dict(zip(messages, (yield list(messages.values())), strict=True))
    return asked, [replies[node_id] for node_id in clients]


def named_like(blocks: nn.Module, weights: State) -> State:
    """Return those weights that some blocks have."""
    return {name: weights[name] for name in blocks.state_dict()}


@torch.inference_mode()
def _outputs(model: nn.Sequential, weights: State, cut: Cut, sent: TestActivations, form: AtCut) -> list[Any]:
    """Return what the server's blocks make of activations; ValueError for what does not fit."""
    blocks = cut.server_side(model)
    blocks.load_state_dict(named_like(blocks, weights))
    blocks.eval()
    example = next(model.parameters())
    return [blocks(given) for given in as_given(sent.values, sent.lengths, form, example.dtype, example.device)]


def as_given(
    batches: Sequence[Tensor], lengths: Sequence[Tensor], form: AtCut, dtype: torch.dtype, device: torch.device
) -> list[Any]:
    """Return activations that came in batches, with or without lengths, as the server's blocks take them.

    Raises
    ------
    ValueError
        For what does not fit.
    """
    if form.crossing.has_lengths != bool(lengths) or (lengths and len(lengths) != len(batches)):
        raise ValueError(f"{len(lengths)} batches of lengths for {len(batches)} of activations")
    given, counting = [], list[Tensor | None](lengths) or [None] * len(batches)
    for batch, own in zip(batches, counting, strict=True):
        check_activations(batch, form.shape, dtype)
        check_lengths(own, batch, form.crossing)
        given.append(form.crossing.given(batch.to(device), None if own is None else own.to(device, torch.int64)))
    return given
