"""ONNX files: written by PyTorch's exporter, and computed by onnxruntime."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn

from espalier.app.ground.errors import FAULTS, UserError
from espalier.app.ground.object_spec import error_line
from espalier.app.ground.registered import load_built_in
from espalier.clients.shared.nested import map_tensors, tensors_of

OPTION, INSTALL = "--onnx", "'espalier-fl[onnx]'"
TOLERANCE = 1e-5
OUTPUT = "outputs"


def exported(model: nn.Module, inputs: Any, traced: int) -> bytes:
    """Return a model as an ONNX file, for any number of examples.

    Parameters
    ----------
    model : nn.Module
        In eval mode, on the CPU; gives a tensor.
    inputs : Any
        A tensor, or a tuple, list or dict of such, with a row per example.
    traced : int
        Examples that it is recorded with, 2 or more.

    Raises
    ------
    UserError
        If a package is not installed, or the model computes what ONNX does not have.
    """
    load_built_in("onnx:load", OPTION, True, "onnx", INSTALL)
    load_built_in("onnxscript:script", OPTION, True, "onnxscript", INSTALL)
    load_built_in("onnxruntime:InferenceSession", OPTION, True, "onnxruntime", INSTALL)
    few = map_tensors(lambda tensor: tensor[:traced], inputs)
    shapes = map_tensors(lambda tensor: {0: torch.export.Dim.DYNAMIC}, few)
    try:
        with _quiet():
            program = torch.onnx.export(
                model,
                (few, {}) if isinstance(few, dict) else (few,),  # a dict that is last would be keyword arguments
                dynamo=True,
                dynamic_shapes=(shapes,),
                output_names=[OUTPUT],
                verbose=False,
            )
            assert program is not None
            written: bytes = program.model_proto.SerializeToString()
    except FAULTS as error:  # of what the exporter has no form for
        raise UserError(
            f"the model can't be written as ONNX ({_first_line(error)}): allowed are models of its operations"
        ) from None
    return written


def largest_difference(written: bytes, inputs: Any, outputs: Tensor) -> float:
    """Return how far what onnxruntime computes is from some outputs, at most.

    An output's distance is divided by its size where that is more than 1. One without a difference to tell, as NaN, is
    infinitely far.
    """
    session_of = load_built_in("onnxruntime:InferenceSession", OPTION, True, "onnxruntime", INSTALL)
    try:
        session = session_of(written, providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_inputs()]
        feed = dict(zip(names, (tensor.numpy() for tensor in tensors_of(inputs)), strict=True))
        found = torch.from_numpy(session.run(None, feed)[0]).double()
    except FAULTS as error:  # what onnxruntime has no form for
        raise UserError(
            f"onnxruntime can't compute the model ({_first_line(error)}): allowed are models that it can"
        ) from None
    if found.shape != outputs.shape:
        return float("inf")
    expected = outputs.detach().double()
    return float(((found - expected).abs() / expected.abs().clamp_min(1)).nan_to_num(nan=float("inf")).max())


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's own lines and warnings back: they are about its inside."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _first_line(error: BaseException) -> str:
    """Return the last cause of an error, whose own text is pages long, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error_line(error)[:300]
