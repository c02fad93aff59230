"""How many nodes are connected to a run, as it tells Prometheus."""

import re
from urllib.request import ProxyHandler, build_opener

MOST_BYTES = 1_000_000
PATIENCE_SECONDS = 1.0
SERIES = re.compile(r"^espalier_connected_nodes (\d+)(?:\.0)?$", re.MULTILINE)


def count_connected(port: int) -> int | None:
    """Return how many nodes are connected to the run that serves Prometheus at a port of this machine; None: not known.

    The settings of a run may be anybody's, so no other machine is ever asked.
    """
    try:
        opener = build_opener(ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{int(port)}/metrics", timeout=PATIENCE_SECONDS) as answer:
            text = answer.read(MOST_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return None
    found = SERIES.search(text)
    return int(found[1]) if found else None
