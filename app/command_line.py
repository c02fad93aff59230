"""The command line: ``python -m espalier KEY=VALUE ... [FILE.toml ...]`` runs the app in this process."""

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from logging import getLogger
from pathlib import Path
from typing import Any

from rich.console import Console

from espalier.app.config.help import help_text, nearest
from espalier.app.config.parse import parse_config, read_arguments, without_runtime
from espalier.app.config.run_config import RunConfig
from espalier.app.ground.errors import Interrupted, UserError, shown
from espalier.app.ground.logs import quiet_flower, show_own_lines
from espalier.app.ground.terminal import lasting_terminal
from espalier.app.reports.final import result_table
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.made_by import maker
from espalier.app.reports.progress import progress_on
from espalier.app.reports.saved import own_code, saved_config
from espalier.app.run.run import engine_of, run
from espalier.app.settings.values import path_of

logger = getLogger("espalier")

# What else the first argument can ask for, and the module whose `main` does it.
COMMANDS = {
    "sweep": "espalier.app.sweeps.command",
    "compare": "espalier.app.comparison.command",
    "page": "espalier.app.page.command",
    "watch": "espalier.app.page.watch",
    "convert": "espalier.app.conversion.command",
    "blocks": "espalier.app.run.blocks",
    "export": "espalier.app.run.export",
    "check": "espalier.app.checks.command",
    "new": "espalier.app.project.command",
}
USAGE = """python -m espalier KEY=VALUE ... [FILE.toml ...]

Runs Espalier's Flower app in this process, without Flower's runtime.

  python -m espalier algorithm=fedavg global-rounds=5 alpha=0.1
  python -m espalier experiment.toml seed=1 engine=ray
  python -m espalier resume=results/20260101-120000-h-fedavg-digits-seed0
  python -m espalier sweep experiment.toml alpha=0.1,0.5 seed=0,1,2    many runs: see sweep --help
  python -m espalier compare results/sweep                             tables and figures of runs: see compare --help
  python -m espalier watch results/run-1                               a run in the browser: see watch --help
  python -m espalier page results/run-1                                the same as a file: see page --help
  python -m espalier convert tiny-imagenet SRC DEST                    published data as image folders: convert --help
  python -m espalier blocks model=cnn                                  blocks of a model, and what a cut takes
  python -m espalier export results/my-run --onnx                      a trained model as ONNX: see export --help
  python -m espalier help split                                        settings of a section, a key or a word
  python -m espalier check my_package.my_module:MyTask                 whether your own code fits: check --help
  python -m espalier new my-study                                      a project with code of your own: new --help

keys and defaults, by section:

"""


def main(arguments: Sequence[str], cores: int = 0) -> int:
    """Run what a command line asks for and return the exit code; in process a run uses `cores`, 0: all there are."""
    return command_of(arguments, cores)()


def command_of(arguments: Sequence[str], cores: int = 0) -> Callable[[], int]:
    """Return what runs what a command line asks for, see `main`, and gives the exit code."""
    if arguments and arguments[0] in COMMANDS:
        # Imported here: a single run has no use for the others.
        return partial(_with_a_terminal, import_module(COMMANDS[arguments[0]]).main, arguments[1:])
    if {"-h", "--help"} & set(arguments):
        return print_help
    if arguments and arguments[0] == "help":
        return partial(print_help, *arguments[1:])
    if list(arguments) == ["--version"]:
        return print_version
    return partial(_with_a_terminal, partial(_run, cores=cores), arguments)


def _with_a_terminal(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    with lasting_terminal():
        return command(arguments)


def _run(arguments: Sequence[str], *, cores: int) -> int:
    """Make one run and return the exit code."""
    show_own_lines()
    quiet_flower()
    try:
        config = _config(read_arguments(arguments))
        if not arguments:
            print(_what_begins(config), flush=True)
        with engine_of(config, cores=cores) as engine:
            path = run(config, engine, progress_on(Console()), Path.cwd() / "results")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Interrupted as interrupt:
        resume = f"python -m espalier {shlex.quote(f'resume={interrupt.folder}')}"
        print(f"interrupted; to go on after the last whole round: {resume}", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        print("interrupted before the first round", file=sys.stderr)
        return 130
    print(result_table(ResultsFolder(path).read_json("summary.json")))
    print(f"results: {path}")
    return 0


def _what_begins(config: RunConfig) -> str:
    """Return what a command without settings runs, and how to stop it."""
    own = config.federation
    return (
        f"nothing given: {config.algorithm.name} on {config.data.title} begins, {own.num_clients} clients, "
        f"{own.global_rounds} global rounds.\nCtrl-C stops it and says how to go on; espalier help lists all settings."
    )


def print_version() -> int:
    """Print the package's name and version."""
    return _print(f"espalier {maker()['version']}")


def print_help(*words: str) -> int:
    """Print what can be typed, or settings of each word."""
    found = [help_text(word) for word in words] or [USAGE + help_text()]
    if "" in found:
        word = words[found.index("")]
        print(
            f"error: help {shown(word)}: nothing of that name: nearest are {', '.join(nearest(word))}", file=sys.stderr
        )
        return 2
    return _print("\n\n".join(found))


def _print(text: str) -> int:
    """Print a text and return the exit code; somebody may read the first lines only."""
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains as it ends
        if not isinstance(error, BrokenPipeError):
            print(f"error: standard output can't be written ({error.strerror})", file=sys.stderr)
            return 2
    return 0


def _config(given: dict[str, Any]) -> RunConfig:
    """Return the config; a resumed run needs no key but `resume`, the rest comes from its folder.

    A run of Flower's runtime goes on without it.
    """
    if given.get("resume"):
        folder = path_of("resume", str(given["resume"]))
        config = saved_config(folder)
        if named := ", ".join(f"{k} = {shown(v)}" for k, v in own_code(config).items() if k not in given):
            logger.info("code is imported that %s names: %s", folder / "config.json", named)
        saved = {**config.as_dict(), "output-dir": ""}
        if config.on_devices:
            del saved["engine"]
        given = {**saved, **given}
    return parse_config(without_runtime(given))
