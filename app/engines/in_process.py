"""All clients in this process, as many at a time as it has cores."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from logging import getLogger
from typing import Any, TypeVar

import torch

from espalier.app.engines.opening import Opening
from espalier.app.wiring.clients import client_half, looked_up_once, why_in_turn
from espalier.clients.client_app import make_client_app
from espalier.clients.device.machine import cpu_count
from espalier.clients.messages.seconds import tell_waiting
from espalier.clients.seconds import tell_seconds
from espalier.clients.shared.lanes import Lanes
from espalier.clients.stacked.stacking import TrainingStack
from espalier.sim.in_process_grid import InProcessGrid
from espalier.sim.side_by_side import FittingThreads, Runs, Threads, one_by_one

logger = getLogger("espalier")

Result = TypeVar("Result")

# Clients take turns here: one without a stream by then waits for its turn, which comes only when the others give up.
PATIENCE_SECONDS = 1.0


def threads_for(workers: int, cores: int, torch_threads: int, run_config: Mapping[str, Any]) -> Runs:
    """Return what runs clients at the same time, in `workers` threads of `torch_threads` PyTorch threads each.

    With 0 workers, in as many as the cores have room for, and as pay, see `espalier.sim.side_by_side.FittingThreads`.
    Where clients have to take turns, they do, with a line that says why.
    """
    most = workers or max(cores // torch_threads, 1)
    if most == 1:
        return one_by_one
    # PyTorch's number of threads holds in a thread that has asked for it: before, oneDNN takes all cores there, and
    # other bits come out.
    kind = Threads if workers else FittingThreads
    return _WhereAllowed(kind(most, torch.get_num_threads), lambda: why_in_turn(run_config))


class _WhereAllowed:
    """Makes calls by `runs`, unless there is a reason not to, which is asked for with the first calls and logged."""

    def __init__(self, runs: Runs, why_not: Callable[[], str]) -> None:
        self._runs, self._why_not = runs, why_not
        self._asked = False

    def __call__(self, kind: str, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        if not self._asked and len(calls) > 1:
            self._asked = True
            if reason := self._why_not():
                logger.info("clients run one after the other: %s", reason)
                self._runs = one_by_one
        return self._runs(kind, calls)


class InProcess:
    """An engine whose clients run in this process.

    Parameters
    ----------
    grid : InProcessGrid
        Runs them.
    lanes : Lanes, optional (default: None)
        Where they find the edges of this process. None: they get a message for every mini-batch.
    """

    def __init__(self, grid: InProcessGrid, lanes: Lanes | None = None) -> None:
        self.grid = grid
        self.lanes = lanes

    @property
    def numbers(self) -> Mapping[int, int] | None:
        """Each client's number by its node id, in client order; None where a node's config may say more of it."""
        return None if self.grid.has_own_configs else self.grid.numbers

    @classmethod
    def open(
        cls,
        num_clients: int,
        run_config: Mapping[str, Any],
        seed: int,
        stack: int = 0,
        runs: Runs = one_by_one,
    ) -> "InProcess":
        """Return an engine with `num_clients` new nodes that run the app's ClientApp with a run config.

        Of clients that train in one message, `stack` at a time do so side by side, as one; 0: each by itself. `runs`
        runs clients that train and are evaluated by themselves.
        """
        load_task, lanes = looked_up_once(), Lanes()
        client_app = make_client_app(load_task, durable=False, lanes=lanes, mods=[tell_seconds])
        together = TrainingStack(load_task, stack, lanes, client_half(run_config)) if stack else None
        grid = InProcessGrid(
            client_app,
            num_clients,
            run_config=dict(run_config),
            seed=seed,
            stack=together,
            runs=runs,
            on_waited=tell_waiting,
        )
        return cls(grid, lanes)

    def stream_patience_seconds(self, timeout_seconds: float) -> float:
        """Return a second, whatever the timeout: clients wait for each other."""
        return PATIENCE_SECONDS

    def clients_state(self) -> dict[str, Any]:
        """Return the state of all nodes."""
        return self.grid.state_dict()

    def load_clients_state(self, state: Mapping[str, Any]) -> bool:
        """Give all nodes their state back; return True."""
        self.grid.load_state_dict(state)
        return True


def opened(opening: Opening) -> AbstractContextManager[InProcess]:
    """Open it for a run."""
    runs: Runs = one_by_one
    if opening.on_gpu:
        if opening.workers > 1:
            logger.warning("workers = %d has no effect: a GPU computes for one client at a time", opening.workers)
    else:
        runs = threads_for(opening.workers, opening.cores or cpu_count(), opening.threads, opening.settings)
    return nullcontext(InProcess.open(opening.num_clients, opening.settings, opening.seed, opening.stack, runs))
