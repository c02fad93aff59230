"""Two tiers on loopback, for an hour, under faults every few seconds; in the end nothing is wrong or left over.

``make soak``, or ``SOAK_SECONDS=600 make soak`` for less; with ``SOAK_TRANSPORT=stream`` devices and gateways stay. The
folder gets ``faults.jsonl``, ``samples.jsonl`` (what every process holds, each ten seconds), the results of the cloud's
run and of a replay of who took part, all logs, and ``summary.json``. Exits with 1 if something is wrong. Linux only.
"""

import argparse
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from local import StartError

from espalier.clients.device.edge_socket import MAX_PATH_BYTES, SOCKET
from tests.app.runs import lines
from tests.strategies.split.proxy import StreamFault, StreamProxy

from ..faults import replay
from . import verdict
from .chaos import Chaos
from .deployment import CLIENTS, TwoTiers, two_tiers
from .resources import AMOUNTS, Holding, as_line, holdings, processes_of, totals

SETTINGS = {
    "algorithm": "phsfl",
    "num-clients": 4,
    "num-edges": 2,
    "global-rounds": 10**6,
    "edge-rounds": 1,
    "local-epochs": 1,
    "batches-per-epoch": 4,
    "batch-size": 16,
    "fine-tune.steps": 1,
    "report.evaluate-every": 0,
    "split.transport": "stream",
    "stream.timeout": 10.0,
    # Not the address of the rest, which gRPC reaches without the proxy.
    "stream.address": "127.0.0.2",
    "deploy.reply-timeout": 180,
    "deploy.wait-for-nodes": 600,
}
# Three SuperLinks that are asked ten times a second keep half a core busy.
LESS_POLLING = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}
FIRST_SECONDS = 300.0  # what is left over since then is too much
SAMPLE_SECONDS = 10.0
LINE_SECONDS = 60.0
RECOVERY_SECONDS = 1800.0  # for what takes three minutes where nothing else runs
SETTLED_SECONDS = 60.0  # a device that comes back is refused until Flower misses the one that was killed
REST_SECONDS = 5.0
LONGEST_WORK_SECONDS = 240.0  # beyond `deploy.reply-timeout`
LAST_ROUNDS = 2
MOST_WAITING = 2  # a fault that finds no stream for long is forgotten


class Soak:
    """A soak as it goes.

    Parameters
    ----------
    tiers : TwoTiers
        What is tried.
    proxy : StreamProxy
        On the way of the streams.
    folder : Path
        Gets what is noted.
    seed : int
        Of the faults.
    stays : bool (default: False)
        Whether devices stay while an edge's run lasts.
    """

    def __init__(self, tiers: TwoTiers, proxy: StreamProxy, folder: Path, seed: int, *, stays: bool = False) -> None:
        self.tiers = tiers
        self.stays = stays
        self.folder = folder
        self.started = time.monotonic()
        self.samples: list[Holding] = []
        self.chaos = Chaos(tiers.units[:], proxy, seed, tiers.rounds, self._note)
        self._next_sample = self._next_line = self._last_start = self.started

    def go(self, seconds: float, end: float) -> None:
        """Inject faults for so long; `end` is when all of it is over."""
        until = time.monotonic() + seconds
        self.chaos.begin(time.monotonic())
        while (now := time.monotonic()) < until:
            self.chaos.step(now)
            self._step(now, end)
        self.chaos.end()

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Let all recover until a condition holds; StartError if it takes too long."""
        deadline = time.monotonic() + RECOVERY_SECONDS
        while not condition():
            if (now := time.monotonic()) > deadline:
                raise StartError(f"no {what} after {RECOVERY_SECONDS:.0f} s; missing: {self.tiers.missing()}")
            self._step(now, 0.0)

    def recover(self) -> None:
        """Wait until everything runs and is in touch, and nothing had to be started again for a while."""
        asked = 0.0

        def is_whole() -> bool:
            nonlocal asked
            if time.monotonic() < max(asked + 5, self._last_start + SETTLED_SECONDS):
                return False
            missing = self.tiers.missing()
            asked = time.monotonic()
            return not missing

        self.wait_for(is_whole, "recovery")

    def rest(self) -> list[Holding]:
        """Stop the cloud's run, wait until nothing works, and return what all processes hold then."""
        say("stopping the cloud's run, to see what everything holds at rest")
        self.tiers.cloud_run.end(RECOVERY_SECONDS)
        self.recover()
        began = quiet_since = time.monotonic()
        last = set[int]()

        def is_quiet() -> bool:
            nonlocal quiet_since, last
            held = holdings(processes_of(self.tiers.folder))
            if time.monotonic() > began + LONGEST_WORK_SECONDS:
                return True  # those that are left wait for what does not come
            working = {one.pid for one in held if one.program == verdict.WORKING}
            if working != last or (working and not self.stays):
                quiet_since, last = time.monotonic(), working
            return time.monotonic() > quiet_since + REST_SECONDS

        self.wait_for(is_quiet, "rest")
        return holdings(processes_of(self.tiers.folder))

    def finish(self) -> None:
        """Run some last rounds without faults, to the end of the run."""
        say("running the last rounds")
        unit, last = self.tiers.cloud_run, self.tiers.rounds() + LAST_ROUNDS
        unit.program = self.tiers.start_cloud(**{"global-rounds": last})
        self.wait_for(lambda: not unit.is_running, "end of the last rounds")
        if unit.wait(1) != 0:
            raise StartError(f"the last rounds failed: see {self.tiers.cloud.folder / 'logs' / 'run.log'}")

    def _step(self, now: float, end: float) -> None:
        """Start again what has ended, take a sample and show how far it is, each where it is due."""
        for unit in self.tiers.units:
            if unit.look():
                self._last_start = now
                self._note(kind="start", of=unit.kind, target=unit.name)
        if now >= self._next_sample:
            self._next_sample = now + SAMPLE_SECONDS
            self._sample()
        if now >= self._next_line:
            self._next_line = now + LINE_SECONDS
            self._show(now, end)
        time.sleep(0.5)

    def _sample(self) -> None:
        new = holdings(processes_of(self.tiers.folder))
        self.samples += new
        with (self.folder / "samples.jsonl").open("a") as file:
            file.writelines(json.dumps(as_line(one)) + "\n" for one in new)

    def _show(self, now: float, end: float) -> None:
        down = [unit.name for unit in self.tiers.units if unit.is_wanted and not unit.is_running]
        stopped = [unit.name for unit in self.tiers.units if unit.stopped]
        eta = f"ETA {(end - now) / 60:.0f} min" if end > now else "recovering"
        states = "".join(
            f"; {what}: {', '.join(names)}" for what, names in (("down", down), ("stopped", stopped)) if names
        )
        faults = self.chaos.counts.total()
        say(f"{(now - self.started) / 60:.0f} min, {faults} faults, {self.tiers.rounds()} rounds, {eta}{states}")

    def _note(self, **fields: object) -> None:
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **fields}
        with (self.folder / "faults.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def say(line: str) -> None:
    """Print a line now."""
    print(line, flush=True)


def soak(folder: Path, seconds: float, seed: int, transport: str) -> int:
    """Run a soak of so long in a folder; return the exit status."""
    settings, stays = SETTINGS | {"deploy.transport": transport}, transport == "stream"
    soaked: list[Soak] = []

    def struck(fault: StreamFault) -> None:
        if soaked:
            soaked[0].chaos.struck(fault)

    proxy = StreamProxy(struck, MOST_WAITING)
    os.environ |= {"grpc_proxy": proxy.address, "no_grpc_proxy": "127.0.0.1,localhost", **LESS_POLLING}
    say(f"starting two tiers in {folder}")
    faults: list[str] = []
    before: verdict.Totals = {}
    after: verdict.Totals = {}
    with two_tiers(folder, settings) as tiers:
        own = Soak(tiers, proxy, folder, seed, stays=stays)
        soaked.append(own)
        try:
            own.wait_for(lambda: tiers.rounds() > 0, "first round")
            own.started = time.monotonic()
            end = own.started + seconds
            own.go(min(FIRST_SECONDS, seconds / 2), end)
            before = totals(own.rest())
            tiers.cloud_run.is_wanted = True
            own.go(end - time.monotonic(), end)
            after = totals(own.rest())
            faults += verdict.more_at_rest(before, after, CLIENTS if stays else 0)
            own.finish()
        except StartError as error:
            faults.append(str(error))
    left = processes_of(folder)
    faults += [f"process {one.pid} ({one.program}) outlives the deployment" for one in holdings(left)]
    proxy.close()
    return conclude(own, before, after, faults)


def conclude(own: Soak, before: verdict.Totals, after: verdict.Totals, faults: list[str]) -> int:
    """Replay who took part, print the figures and write them; return the exit status."""
    results, replayed, difference = own.tiers.results, own.folder / "replayed", None
    with suppress(FileNotFoundError):  # a soak that did not get as far
        faults += verdict.faults_of_lines(results)
        if (results / "model.pt").exists():
            say("replaying who took part")
            last = max(line["round"] for line in lines(results, "global"))
            logging.disable()  # nobody wants the replay's log
            replay(results, replayed, SETTINGS | {"global-rounds": last, "split.transport": "messages"})
            difference = verdict.difference(results, replayed)
            if difference != 0:
                faults.append(f"the weights differ from those of the replay, by up to {difference:g}")
    if difference is None:
        faults.append("there are no weights to compare with those of a replay")
    grown = verdict.growth(own.samples)
    faults += verdict.grown_too_much(grown)
    rounds = verdict.rounds_of(results) if results.exists() else {}
    say("\n" + verdict.table([("faults", "times"), *sorted(own.chaos.counts.items())]))
    say("\n" + verdict.table([("rounds", "number"), *rounds.items()]))
    programs = sorted(before.keys() | after.keys())
    rows = [
        (program, amount, *(totals.get(program, {}).get(amount, 0.0) for totals in (before, after)))
        for program in programs
        for amount in ("processes", *AMOUNTS)
    ]
    say("\n" + verdict.table([("all processes at rest", "", "after 5 minutes", "at the end"), *rows]))
    rows = [(program, *(most[amount] for amount in ("lived", *AMOUNTS))) for program, most in grown.items()]
    say("\n" + verdict.table([("growth of one process (10 minutes and more)", "processes", *AMOUNTS), *rows]))
    say(f"\nweights differ from the replay's by {'?' if difference is None else f'{difference:g}'}")
    for fault in faults:
        say(f"WRONG: {fault}")
    summary = {
        "seconds": round(time.monotonic() - own.started),
        "faults": dict(sorted(own.chaos.counts.items())),
        "starts": {unit.name: unit.starts for unit in own.tiers.units},
        "rounds": rounds,
        "at rest after five minutes": before,
        "at rest at the end": after,
        "growth of one process": grown,
        "difference to the replay": difference,
        "wrong": faults,
    }
    path = own.folder / "summary.json"
    path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    say(str(path))
    return int(bool(faults))


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="gets everything; a new one")
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long faults go on (default: 3600)")
    parser.add_argument("--seed", type=int, default=0, help="of the faults (default: 0)")
    parser.add_argument("--transport", choices=("messages", "stream"), default="messages", help="deploy.transport")
    given = parser.parse_args()
    folder = given.folder.expanduser().resolve()
    longest = len(os.fsencode(folder / "edge-0" / "gateway" / SOCKET))
    if longest > MAX_PATH_BYTES:
        parser.error(f"{folder}: allowed is a path that is {longest - MAX_PATH_BYTES} bytes shorter: it holds sockets")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        parser.error(f"{folder}: allowed is a new folder ({error.strerror})")
    if given.seconds <= 0:
        parser.error(f"--seconds = {given.seconds:g}: allowed is more than 0")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        return soak(folder, given.seconds, given.seed, given.transport)
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except StartError as error:
        say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
