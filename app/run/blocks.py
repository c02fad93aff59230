"""``espalier blocks``: the blocks of a model, and what a cut behind each takes."""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from rich.console import Console
from rich.table import Table
from torch import nn

from espalier.app.config.parse import parse_config, read_arguments, without_runtime
from espalier.app.ground.errors import UserError, bad_value
from espalier.app.planning.work import forward_flops
from espalier.app.tasks.footprint import weight_bytes
from espalier.app.tasks.task import Task
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.shared.cut import Cut, as_blocks, part_of
from espalier.strategies.split.cuts import legal_cuts, weight_on_both_sides
from espalier.strategies.split.shapes import cut_shapes

HELP = """List the blocks of a model and, for a cut behind each, what the client computes, holds and sends.

  espalier blocks
  espalier blocks model=resnet18 dataset=cifar10 data-dir=~/data
  espalier blocks task=own_task.text:Topics

cut-layer takes a number of blocks or the name of the last one on the client,
tail-layer the name of the first one that is the client's again. Weights and
outputs are in bytes. Outputs and FLOPs, of products and convolutions, are those
of one example in a forward pass: a gradient of the output's size comes back, and
a backward pass takes about twice the operations.
"""


@dataclass(frozen=True)
class Block:
    """A block of a model, and what a cut behind it takes.

    Parameters
    ----------
    name : str
        Of the block.
    weights : int
        Bytes of its weights and statistics.
    client_weights : int
        Bytes of those of all blocks up to it.
    client_flops : int
        Floating-point operations of these blocks, for an example.
    shape : tuple[int, ...], optional
        Of an example's activations; None behind the head.
    activations : int
        Their bytes.
    no_cut : str
        Why the model can't be cut behind it; empty where it can.
    """

    name: str
    weights: int
    client_weights: int
    client_flops: int
    shape: tuple[int, ...] | None
    activations: int
    no_cut: str


def main(arguments: Sequence[str]) -> int:
    """Print the blocks of the model that a command line names, and return the exit code."""
    parser = ArgumentParser("espalier blocks", description=HELP, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("given", nargs="*", metavar="FILE.toml|KEY=VALUE", help="settings of a run; later ones win")
    try:
        config = parse_config(without_runtime(read_arguments(parser.parse_args(arguments).given)))
        task = build_task(config)
        task.check_data()
        model = task.new_model()
        try:
            blocks = blocks_of(task, model)
        except ValueError as error:
            named = config.data.task if config.data.task.text else config.data.model
            raise bad_value(named.key, named.text, f"one that is a list of blocks: {error}") from None
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    model_key = "" if config.data.task.text else f", model = {config.data.model.text!r}"
    print(blocks_table(blocks, f"{config.data.source}{model_key}: {len(blocks)} blocks"))
    return 0


def blocks_of(task: Task, model: nn.Module) -> list[Block]:
    """Return the blocks of a task's model; ValueError for one that can't be cut anywhere."""
    legal, example, whole = legal_cuts(model), task.example_input(), as_blocks(model)
    shapes, size = cut_shapes(whole, example), next(model.parameters()).element_size()
    blocks = []
    for number, (name, block) in enumerate(whole.named_children(), start=1):
        front, shape, no_cut = part_of(whole, 0, number), shapes.get(number), ""
        if number == len(whole):
            no_cut = "the head"
        elif number not in legal:
            no_cut = "nothing to train in front"
        elif weight := weight_on_both_sides(whole, Cut(number, len(whole))):
            no_cut = f"{weight} is on both sides"
        activations = 0 if shape is None else size * prod(shape)
        flops = forward_flops(front, example)
        blocks.append(Block(name, weight_bytes(block), weight_bytes(front), flops, shape, activations, no_cut))
    return blocks


def blocks_table(blocks: Sequence[Block], title: str) -> str:
    """Return the blocks as a table that fits 80 columns, where their names do."""
    table = Table(title=title)
    for column in ("cut", "block", "weights", "client's\nweights", "client's\nFLOPs", "%", "output", "output\nbytes"):
        table.add_column(column, justify="left" if column in ("block", "output") else "right", overflow="fold")
    for number, block in enumerate(blocks, start=1):
        share = f"{100 * block.client_flops / blocks[-1].client_flops:.1f}"
        form = block.no_cut or "x".join(map(str, block.shape or ()))
        crossing = [form, "" if block.no_cut else in_units(block.activations)]
        cut = "" if block.no_cut else str(number)
        sizes = [in_units(count) for count in (block.weights, block.client_weights, block.client_flops)]
        table.add_row(cut, block.name, *sizes, share, *crossing)
    console = Console(width=80, color_system=None, markup=False, emoji=False)  # a block may be called block[a]
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip("\n")


def in_units(count: int) -> str:
    """Return a count with four digits and k, M or G for thousands, millions and thousands of millions."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return str(count)
