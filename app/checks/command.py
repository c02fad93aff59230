"""``espalier check``: whether an algorithm, an edge, a strategy or a task of one's own fits, before any run."""

import logging
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from inspect import signature
from typing import Any

from flwr.serverapp.strategy import Strategy

from espalier.app.algorithms.algorithm import Algorithm
from espalier.app.checks.algorithm_laws import check_algorithm
from espalier.app.checks.task_laws import check_task
from espalier.app.ground.errors import UserError, bad_value
from espalier.app.ground.object_spec import ObjectSpec, parse_object
from espalier.app.tasks.own import OwnTask
from espalier.sim.in_process_grid import InProcessGrid
from espalier.strategies import EdgeRounds
from espalier.strategies.edge_laws import Trial, check_edge, plain_client
from espalier.strategies.laws import Broken

HELP = """Try what you wrote against the laws that hold of all of its kind, in this process, in a few seconds.

  espalier check own_algorithm.slow_edges:SLOW_EDGES                 an Algorithm, with clients that train
  espalier check "own_strategy.strategy:ClippedFedAvg(max_norm=0.5)"  a strategy, or an edge: a class, or a function
  espalier check "own_task.tabular:Diabetes(hidden=8)"               a subclass of OwnTask

It prints one line for each law that does not hold: which, what was seen, what to do. The exit code is 0 where all
hold, and 1 where one does not. The module is in this folder, on the PYTHONPATH or installed.
"""
ALLOWED = "an Algorithm, a subclass of OwnTask, or a class or function that makes a Flower strategy or an edge"
NUM_NODES = 4


def main(arguments: Sequence[str]) -> int:
    """Check what a command line names and return the exit code."""
    parser = ArgumentParser("espalier check", description=HELP, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="package.module:NAME")
    names: list[str] = parser.parse_args(arguments).names
    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # what its strategies warn of is what is tried
    logging.getLogger("espalier").setLevel(logging.CRITICAL)
    num_broken = 0
    for name in names:
        try:
            broken = check(name)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        for one in broken:
            print(f"{name}: {one}")
        if not broken:
            print(f"{name}: all laws hold")
        num_broken += len(broken)
    return 1 if num_broken else 0


def check(text: str) -> list[Broken]:
    """Return the laws that break of what ``package.module:NAME(argument=value)`` names.

    Raises
    ------
    UserError
        If it can't be imported, or is none of these.
    """
    try:
        module, name, parameters = parse_object(text)
    except ValueError as error:
        raise bad_value("check", text, f"package.module:NAME or package.module:NAME(argument=value), {error}") from None
    spec = ObjectSpec("check", text, module, name, parameters)
    if not module:
        raise bad_value("check", text, "package.module:NAME, with the module that it is in")
    found = spec.load()
    if isinstance(found, Algorithm):
        return check_algorithm(found)
    if isinstance(found, type) and issubclass(found, OwnTask):
        return check_task(found, dict(parameters))
    if not callable(found):
        raise bad_value("check", text, f"{ALLOWED}, not a {type(found).__name__}")
    _made(spec, found)  # what it lacks is a mistake in the line, not a law
    return check_edge(lambda: Trial(_made(spec, found), InProcessGrid(plain_client, NUM_NODES)))


def _made(spec: ObjectSpec, found: Any) -> Strategy | EdgeRounds:
    """Return a new edge, or strategy; a function that makes edges may ask for a name and a number of nodes."""
    usual = {"name": "edge-0", "size": NUM_NODES}
    return spec.call(found, **{name: usual[name] for name in usual.keys() & signature(found).parameters.keys()})
