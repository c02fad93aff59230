"""One HTML file that needs no network: its style, its program and its data are in it.

Nothing that a run's files say is executed. Data are JSON in a block that browsers don't run, the program makes text
nodes of them, and the policy of the page allows this program and this style alone, by their hashes, and no HTML made
of text.
"""

import json
import math
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

PROGRAM = (
    *("uplot/uPlot.iife.min.js", "dom.js", "figures.js", "charts.js", "tables.js", "tiers.js", "pictures.js"),
    "main.js",
)
STYLE = ("uplot/uPlot.min.css", "page.css")
SEPARATORS = (",", ":")


@cache
def text_of(name: str) -> str:
    """Return the text of a file that the page is made of."""
    return (files("espalier.app.page") / "static" / name).read_text(encoding="utf-8")


def data_json(runs: Sequence[Any], live: dict[str, Any] | None = None) -> str:
    """Return what the page shows as JSON; `live` says how it is brought up to date, None: not at all."""
    told = {"runs": runs, "live": live}
    try:
        return json.dumps(told, separators=SEPARATORS, allow_nan=False)
    except ValueError:  # a number of a damaged file, say: browsers read no NaN
        return json.dumps(_finite(told), separators=SEPARATORS)


def policy(*, is_live: bool) -> str:
    """Return the page's Content-Security-Policy."""
    rules = {
        "default-src": "'none'",
        "script-src": f"'sha256-{_hash(_program())}'",
        "style-src": f"'sha256-{_hash(_style())}'",
        "connect-src": "'self'" if is_live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{key} {value}" for key, value in rules.items())


def page_html(data: str, *, is_live: bool = False) -> str:
    """Return the page, with what `data_json` returned."""
    # No tag, comment or entity can begin in it, and no line of a program end.
    escaped = data.translate({ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(is_live=is_live)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>Espalier</title>
<style>{_style()}</style>
</head>
<body>
<noscript>This page draws its figures with JavaScript, which is switched off.</noscript>
<main id="page"></main>
<script type="application/json" id="data">{escaped}</script>
<script>{_program()}</script>
</body>
</html>
"""


def _finite(value: Any) -> Any:
    """Return plain data with None for NaN and Inf."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@cache
def _program() -> str:
    # The library is a program of its own; ours is one function, so that no name of it is global.
    library, *ours = map(text_of, PROGRAM)
    return f'{library}\n(function () {{\n"use strict";\n{"".join(ours)}}})();\n'


@cache
def _style() -> str:
    return "".join(map(text_of, STYLE))


def _hash(text: str) -> str:
    return b64encode(sha256(text.encode()).digest()).decode()
