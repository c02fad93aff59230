"""``espalier page``: one HTML file of a run, or of several, that opens without a network."""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from espalier.app.ground.durable import replace_text
from espalier.app.ground.errors import UserError, bad_value
from espalier.app.page.html import data_json, page_html
from espalier.app.page.runs import Runs
from espalier.app.reports.folder import CONFIG
from espalier.app.settings.values import path_of

PAGE = "page.html"
HELP = """Write a page of a run, or of several side by side: one HTML file that opens without a network.

  espalier page results/run-1                      results/run-1/page.html
  espalier page results/run-1 results/run-2        both in results/page.html
  espalier page results/sweep                      the runs of a sweep, in results/sweep/page.html

A run may be over, go on or be interrupted; espalier watch shows one that goes on. docs/page.md says more.
"""


def main(arguments: Sequence[str]) -> int:
    """Write what a command line names and return the exit code."""
    parser = ArgumentParser("espalier page", description=HELP, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="of a run, or of several runs' folders")
    parser.add_argument("--output", metavar="FILE", help=f"where to (default: {PAGE} in FOLDER, or beside several)")
    options = parser.parse_args(arguments)
    try:
        folders = [path_of("FOLDER", folder) for folder in options.folders]
        if options.output == "":
            raise bad_value("--output", "", "a file")
        output = path_of("--output", options.output) if options.output else default_output(folders)
        write_page(output, Runs(folders))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        why = f"can't be written ({error.strerror or error}); another place: --output FILE"
        print(f"error: {error.filename or output}: {why}", file=sys.stderr)
        return 2
    print(f"page: {output}")
    return 0


def default_output(folders: Sequence[Path]) -> Path:
    """Return where the page of what is in some folders goes."""
    beside = len(folders) > 1 and (folders[0] / CONFIG).exists()
    return (folders[0].parent if beside else folders[0]) / PAGE


def write_page(output: Path, runs: Runs) -> None:
    """Write the page of some runs.

    Raises
    ------
    UserError
        If a folder holds no run, or a run's files are not those that it writes.
    OSError
        If it can't be written.
    """
    runs.refresh()
    replace_text(output, page_html(data_json(runs.data())))
