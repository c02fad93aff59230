"""``espalier watch``: the page of runs that go on, in a browser."""

import re
import secrets
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import suppress

from espalier.app.ground.errors import UserError, bad_value
from espalier.app.page.runs import Runs
from espalier.app.page.server import LOCAL, Source, is_loopback, opened
from espalier.app.settings.values import path_of

PORT = 8580
TOKEN = re.compile(r"[A-Za-z0-9_-]{16,}")
HELP = """Show runs in a browser while they go on, or when they are over. It only reads the folders.

  espalier watch results/run-1                     at http://127.0.0.1:8580/, on this machine alone
  espalier watch results/sweep                     runs side by side, those too that begin later
  espalier watch results/run-1 --host 0.0.0.0 --token SECRET-OF-16-LETTERS

Ctrl-C ends it; the runs go on. docs/page.md says more.
"""


def main(arguments: Sequence[str]) -> int:
    """Show what a command line names until it is interrupted, and return the exit code."""
    parser = ArgumentParser("espalier watch", description=HELP, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="of a run, or of several runs' folders")
    parser.add_argument("--port", type=int, default=PORT, help=f"default: {PORT}; 0: any that is free")
    parser.add_argument("--host", default=LOCAL, help=f"default: {LOCAL}, this machine alone; others need --token")
    parser.add_argument("--token", default="", help="text that the address of the page has to name")
    options = parser.parse_args(arguments)
    try:
        check_access(options.host, options.token)
        source = Source(Runs([path_of("FOLDER", folder) for folder in options.folders]))
        source.latest()
        server = opened(options.host, options.port, options.token, source)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with server, suppress(KeyboardInterrupt):
        print(f"page: {server.url}\nCtrl-C ends it; the runs go on", flush=True)
        server.serve_forever()
    return 0


def check_access(host: str, token: str) -> None:
    """Refuse to show runs to other machines without a token, with one that can be guessed, or at no address."""
    if not host:
        raise bad_value("--host", host, "an address of this machine, such as 0.0.0.0 for all")
    example = secrets.token_urlsafe(24)
    if token and not TOKEN.fullmatch(token):
        raise bad_value("--token", token, f"16 or more letters, digits, - and _, such as {example}")
    if not (token or is_loopback(host)):
        raise bad_value("--host", host, f"{LOCAL}, or another with --token, such as --token={example}")
