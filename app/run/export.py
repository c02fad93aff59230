"""``espalier export``: a run's model, or a device's blocks of it, as ONNX."""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.algorithms.registry import algorithm_named
from espalier.app.algorithms.split_edges import cuts_of
from espalier.app.comparison.runs import read_run
from espalier.app.ground.durable import replace_file
from espalier.app.ground.errors import FAULTS, UserError, bad_value
from espalier.app.ground.object_spec import error_line
from espalier.app.reports.folder import CONFIG, METRICS
from espalier.app.reports.saved import saved_config
from espalier.app.run.onnx_files import TOLERANCE, exported, largest_difference
from espalier.app.settings.sections import Split
from espalier.app.settings.values import path_of
from espalier.app.tasks.task import Task
from espalier.app.tasks.trial import spread_over
from espalier.app.wiring.task_of_run import build_task
from espalier.clients.shared.cut import Cut, as_blocks, part_of
from espalier.clients.shared.nested import rows_on

HELP = """Write a trained model as an ONNX file, and check it by onnxruntime.

  espalier export results/my-run --onnx                  the whole model: model.onnx
  espalier export results/my-run --onnx --blocks device  the blocks on client 0, by the run's cut-layer and tail-layer
  espalier export results/my-run --onnx --blocks device --client 3    client 3's, with its head of heads.pt

A model takes inputs as the run prepared them: of images, by mean and std in
data.json. What is written gives what the run's model gives on examples of the
test pool, to 1e-5. docs/use-the-model.md says more.
"""
MODEL, HEADS = "model.pt", "heads.pt"
EXAMPLES = 32  # of the test pool, which both compute on
TRACED = 3  # examples that a model is recorded with


@dataclass(frozen=True)
class Piece:
    """Blocks to write, and the inputs to try them on.

    Parameters
    ----------
    name : str
        Of the file, without its suffix.
    model : nn.Module
        The blocks.
    inputs : Any
        Tensors with a row per example, as the blocks take them.
    """

    name: str
    model: nn.Module
    inputs: Any


def main(arguments: Sequence[str]) -> int:
    """Write what a command line names and return the exit code."""
    parser = ArgumentParser("espalier export", description=HELP, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the results folder of a run that is over")
    parser.add_argument("--onnx", action="store_true", required=True, help="as ONNX files")
    parts = "the whole model, or what a device has of it (default: all)"
    parser.add_argument("--blocks", choices=("all", "device"), default="all", help=parts)
    parser.add_argument("--client", type=int, help="the client whose cut, and head, it is (default: nobody's head)")
    parser.add_argument("--output", type=Path, metavar="DEST", help="folder of the files (default: FOLDER)")
    options = parser.parse_args(arguments)
    destination = options.output or options.folder
    try:
        folder, destination = path_of("FOLDER", str(options.folder)), path_of("--output", str(destination))
        if not (folder / CONFIG).is_file():
            raise UserError(f"{folder}: holds no {CONFIG}: allowed is the results folder of a run that is over")
        if (folder / METRICS).is_file():  # else only the model was copied
            read_run(folder)  # refuses one that is not over: its model may be that of an earlier end
        config = saved_config(folder)
        task = build_task(config.model_copy(update={"device": "cpu"}))
        model = trained_model(folder, task, config.federation.num_clients, options.client)
        is_whole = options.blocks == "all"
        if is_whole and options.client is not None and not (folder / HEADS).exists():
            raise bad_value("--client", options.client, f"left out: the run has saved no {HEADS}")
        # A saved config has no algorithm of a user's own, but a stand-in, which cuts nothing.
        algorithm = config.algorithm if is_whole else algorithm_named(config.algorithm.text)
        cut = None if is_whole else device_cut(config.split, algorithm, model, options.client or 0)
        destination.mkdir(parents=True, exist_ok=True)
        for piece in pieces(task, model, cut):
            print(_written(piece, destination / f"{piece.name}.onnx"))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename or destination}: can't be read or written ({error.strerror})", file=sys.stderr)
        return 2
    return 0


def trained_model(folder: Path, task: Task, num_clients: int, client: int | None = None) -> nn.Module:
    """Return the trained model of a run, on the CPU; with a client's own head, if the run has saved it.

    Raises
    ------
    UserError
        If its model can't be read, or there is no such client.
    """
    if client is not None and not 0 <= client < num_clients:
        raise bad_value("--client", client, f"0 to {num_clients - 1}")
    model = task.new_model().eval()
    try:
        model.load_state_dict(torch.load(folder / MODEL, weights_only=True))
        if client is not None and (folder / HEADS).exists():
            head = torch.load(folder / HEADS, weights_only=True)[client]
            if unknown := model.load_state_dict(head, strict=False).unexpected_keys:
                raise KeyError(f"{HEADS} has {unknown[0]}")
    except FAULTS as error:  # no file, a damaged one, or weights of another model
        raise UserError(
            f"{folder}: its model can't be read ({error_line(error)}): allowed is what a run wrote"
        ) from None
    return model


def device_cut(split: Split, algorithm: Algorithm, model: nn.Module, client: int) -> Cut:
    """Return where a client's model is cut; UserError for a run that did not split it, or where plans chose."""
    if not (cuts := cuts_of(algorithm, split, model)):
        raise bad_value("--blocks", "device", f"'all' for algorithm = {algorithm.text!r}, which splits no model")
    if split.cut_layer.is_best:
        raise bad_value("--blocks", "device", f"'all' for cut-layer = {split.cut_layer.text!r}: plans chose it")
    return cuts[client % len(cuts)]


def pieces(task: Task, model: nn.Module, cut: Cut | None) -> Iterator[Piece]:
    """Yield the whole model, or with a cut what is in front of it, and the tail if there is one, with their inputs."""
    pool = task.test_examples()
    rows = spread_over(pool, max(TRACED, min(EXAMPLES, len(pool))))
    inputs = task.normaliser()(rows_on(pool.inputs, rows, torch.device("cpu")))
    if cut is None:
        yield Piece("model", model, inputs)
        return
    blocks = as_blocks(model)
    yield Piece("device", cut.front(blocks).eval(), inputs)
    if cut.has_tail(blocks):
        with torch.no_grad():
            inputs = part_of(blocks, 0, cut.last).eval()(inputs)
        yield Piece("device-tail", cut.tail(blocks).eval(), inputs)


def _written(piece: Piece, file: Path) -> str:
    """Write some blocks and return what was written, in words; UserError unless both give the same."""
    with torch.no_grad():
        outputs = piece.model(piece.inputs)
    if not isinstance(outputs, Tensor):
        raise UserError(f"{file}: a model gives a {type(outputs).__name__}: allowed is one that gives a tensor")
    written = exported(piece.model, piece.inputs, TRACED)
    difference = largest_difference(written, piece.inputs, outputs)
    if not difference <= TOLERANCE:
        raise UserError(f"{file}: would differ by {difference:.1e} of the model: allowed is {TOLERANCE:g}")
    replace_file(file, lambda to: to.write(written))
    return f"{file}: {len(written):,} bytes, {difference:.1e} from the model on {len(outputs)} test examples"
