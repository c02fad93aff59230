"""A run that is to go on: what it left is checked, and given back to those who keep a state from round to round."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord

from espalier.app.config.keys import keys_tagged
from espalier.app.engines.engine import Engine
from espalier.app.ground.errors import UserError, bad_value
from espalier.app.ground.object_spec import FLOWER, error_line
from espalier.app.ground.regular_files import open_to_read
from espalier.app.planning.world import PlannedWorld
from espalier.app.reports.best import best_line
from espalier.app.reports.folder import ResultsFolder, changed_setting
from espalier.app.reports.observers import BestRound
from espalier.app.reports.run_state import RunState
from espalier.app.settings.section import Tag
from espalier.app.settings.sections import Data
from espalier.app.settings.values import read_csv
from espalier.app.tasks.task import Task
from espalier.sim.simulated_grid import GridLost
from espalier.strategies import Hierarchical, Round
from espalier.strategies.reply_faults import array_fault


class UnfitStateError(Exception):
    """A saved state that is not one of this run's; the text says why."""


SHUFFLED = " shuffled"  # before it is shared out
FIRST_ROUND = "the first round with it failed, for what it holds or in code of your own: "


@contextmanager
def unfit_state(what: str = "") -> Iterator[None]:
    """Turn an error inside the block into an `UnfitStateError`: a file brought the state, and a user's code reads it.

    Parameters
    ----------
    what : str (default: "")
        Put in front of the error.
    """
    try:
        yield
    except (UserError, GridLost, OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UnfitStateError(what + error_line(error)) from error


def fingerprint_of(task: Task, data: Data) -> str:
    """Return a hash of a task's data, with what else decides who has which example."""
    return task.data_fingerprint() + (SHUFFLED if data.partition.module == FLOWER else "")


def file_hashes(settings: Mapping[str, Any], unused: Collection[str]) -> dict[str, str]:
    """Return a hash of what each file holds that a run goes by all along, by the keys that name them.

    Parameters
    ----------
    settings : Mapping[str, Any]
        All of them, by key.
    unused : Collection[str]
        Keys that the run has no use for: there may be no such file.

    Raises
    ------
    UserError
        If a file can't be read.
    """
    keys = sorted(keys_tagged(Tag.CONTENT).difference(unused))
    return {key: read_csv(key, settings[key], "", _hash_of) for key in keys if settings[key]}


def _hash_of(path: Path) -> str:
    with open_to_read(path) as file:
        return sha256(file.read()).hexdigest()


def resumable_state(
    folder: ResultsFolder,
    *,
    data_fingerprint: str,
    files: Mapping[str, str],
    settings: Mapping[str, Any],
    defaults: Mapping[str, Any],
    weights: ArrayRecord,
) -> RunState | None:
    """Return the state to go on from, None if there is none yet.

    Parameters
    ----------
    folder : ResultsFolder
        The run's.
    data_fingerprint : str
        Of its data as they are now.
    files : Mapping[str, str]
        What `file_hashes` returns now.
    settings : Mapping[str, Any]
        Those to go on with, by key.
    defaults : Mapping[str, Any]
        By these the run went where its state does not name a setting, which is newer then.
    weights : ArrayRecord
        Of a new model, those that travel.

    Raises
    ------
    UserError
        If the state is not one of this run's.
    """
    state = folder.load_state()
    if state is None:
        return None
    if state.settings and (key := changed_setting(settings, made_with := {**defaults, **state.settings})):
        allowed = f"{made_with[key]!r}, as in {folder.path}/state.npz: set it so again, or begin a new run"
        raise bad_value(key, settings[key], allowed)
    if key := next((key for key, before in state.files.items() if files.get(key) != before), ""):
        raise bad_value(key, settings[key], f"a file with what it held for the run to resume, {folder.path}")
    if state.data + SHUFFLED == data_fingerprint:
        allowed = "that of a run of this edition: examples are shuffled now before Flower Datasets shares them out"
        raise bad_value("partition", settings["partition"], allowed)
    if state.data != data_fingerprint:
        key = "task" if settings["task"] else "data-dir"
        raise bad_value(key, settings[key], f"the data of the run to resume, {folder.path}")
    if state.round > settings["global-rounds"]:
        allowed = f"at least {state.round}, the rounds that are over"
        raise bad_value("global-rounds", settings["global-rounds"], allowed)
    if fault := array_fault(state.arrays, weights):
        raise folder.other_state(f"arrays: {fault}")
    return state


def check_same_edges(before: Mapping[str, Sequence[int]], now: Mapping[str, Sequence[int]]) -> None:
    """Refuse other edges, or clients, than those of the run to resume: states belong to edges.

    Raises
    ------
    UserError
        If a client is at another edge.
    UnfitStateError
        If the clients are others.
    """
    edge_before, edge_now = _edges_of_same_clients(before, now)
    for client, edge in sorted(edge_now.items()):
        if edge != edge_before[client]:
            raise UserError(
                f"client {client} is at edge {edge!r}: allowed is {edge_before[client]!r}, as before resume"
            )


def check_edges_for_moves(before: Mapping[str, Sequence[int]], now: Mapping[str, Sequence[int]]) -> None:
    """Refuse other edges, or clients, than those of the run to resume, where clients may be at another edge.

    Raises
    ------
    UserError
        If an edge is new, or is gone, since all of its clients have left.
    UnfitStateError
        If the clients are others.
    """
    edge_before, edge_now = _edges_of_same_clients(before, now)
    edges = ", ".join(before)
    for client, edge in sorted(edge_now.items()):
        if edge not in before:
            raise UserError(f"client {client} is at edge {edge!r}: allowed is one of {edges}, as before resume")
    if gone := sorted(set(edge_before.values()) - set(edge_now.values())):
        raise UserError(f"no client names the edge {gone[0]!r}: allowed is one or more at each of {edges} to resume")


def _edges_of_same_clients(
    before: Mapping[str, Sequence[int]], now: Mapping[str, Sequence[int]]
) -> tuple[dict[int, str], dict[int, str]]:
    if sum(map(len, before.values())) != sum(map(len, now.values())):
        raise UnfitStateError("edges: it is of other clients")
    edge_before = {client: edge for edge, clients in before.items() for client in clients}
    edge_now = {client: edge for edge, clients in now.items() for client in clients}
    if edge_before.keys() != edge_now.keys():
        raise UnfitStateError("edges: it is of other clients")
    return edge_before, edge_now


def take_back(state: RunState, hierarchical: Hierarchical, engine: Engine, world: PlannedWorld | None) -> None:
    """Give all who keep a state from round to round theirs, of a run that is to go on.

    Raises
    ------
    UnfitStateError
        If they can't take it.
    """
    with unfit_state():
        hierarchical.load_state_dict(state.strategies)
        if world:
            world.load_state_dict(state.world)
        # Last: edges that are served try what they will get. Nothing of clients was saved where SuperNodes kept it.
        if not (engine.load_clients_state(state.clients) and state.clients):
            hierarchical.clients_begin_anew()


def take_best_back(best: BestRound, state: RunState, folder: ResultsFolder) -> None:
    """Give a run that is to go on its best round so far; UnfitStateError if it is not in the state, or unfit."""
    with unfit_state():
        rounds = [line for line in folder.read_metrics() if line["round"] <= state.round]
        if not state.best and best_line(rounds):
            raise ValueError("best: it is missing, and metrics.jsonl has a best round")
        best.load_state_dict(state.best)


def until_all_have_begun(rounds: Iterator[Round], edges: Collection[str]) -> Iterator[Round]:
    """Yield rounds; UnfitStateError if one fails before all edges that have taken their state back were in one.

    Arrays of a wrong shape, say, are found out only by the strategy that they belong to, and the cloud may choose an
    edge, or wait for it, in a later round.
    """
    untried = set(edges)
    while True:
        with unfit_state(FIRST_ROUND) if untried else nullcontext():
            outcome = next(rounds, None)
        if outcome is None:
            return
        untried -= outcome.edges.keys()
        yield outcome
