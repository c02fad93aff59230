"""Results folders with hostile names, and of many clients, as a run could have written them."""

import json
import shutil
from pathlib import Path

from espalier.app.config.parse import parse_config
from espalier.app.page.run_data import Data, RunReader

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'`&\u2028__proto__"


def run_data(path: Path, label: str = "") -> Data:
    """Return what a page says of the run in a results folder."""
    reader = RunReader(path, label or path.name)
    reader.refresh()
    return reader.data()


def with_hostile_names(folder: Path, into: Path) -> Path:
    """Copy a run's folder, with an edge of a hostile name, clients that failed for such a reason, and such settings."""
    shutil.copytree(folder, into)
    edge = json.dumps(HOSTILE)
    for name in ("metrics.jsonl", "seconds.jsonl", "world.json"):
        path = into / name
        if path.exists():
            path.write_text(path.read_text().replace('"edge-0"', edge))
    lines = [json.loads(line) for line in (into / "metrics.jsonl").read_text().split("\n") if line]
    for line in lines:
        if line["scope"] == "edge":
            line["failures"].append({"edge_round": 1, "client": line["participants"][0][0], "reason": HOSTILE})
        elif line["scope"] == "global":
            line[HOSTILE] = 1.0
            line["__proto__"] = 2.0
            line["cloud_failures"] = [HOSTILE]
    (into / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    csv_edge = '"' + HOSTILE.replace('"', '""') + '"'
    for name in ("partition.csv", "clients.csv"):
        text = (into / name).read_text().replace(",edge-0,", f",{csv_edge},")
        (into / name).write_text(text)
    config = json.loads((into / "config.json").read_text())
    (into / "config.json").write_text(json.dumps(config | {"algorithm": HOSTILE}))
    return into


def write_large_run(folder: Path, *, clients: int, rounds: int, edges: int = 4) -> Path:
    """Write the config and the lines of a run of so many clients, all of whom train in all rounds."""
    folder.mkdir()
    config = parse_config({"engine": "in-process", "num-clients": clients, "num-edges": edges, "global-rounds": rounds})
    (folder / "config.json").write_text(json.dumps(config.as_dict()))
    members = {f"edge-{i}": list(range(i, clients, edges)) for i in range(edges)}
    sent = {"edge": {way: {"model": 1000 * clients} for way in ("uplink", "downlink")}}
    with (folder / "metrics.jsonl").open("w") as metrics, (folder / "seconds.jsonl").open("w") as seconds:
        for number in range(1, rounds + 1):
            own = {
                str(i): {"loss": 2 / number + i / clients, "accuracy": i / clients, "num-examples": 20}
                for i in range(clients)
            }
            spread = {"mean": 1 - 1 / (number + 1), "std": 0.1, "min": 0.0, "max": 1.0}
            for name, numbers in members.items():
                line = {"round": number, "scope": "edge", "edge": name, "trained": True, "participants": [numbers] * 2}
                more = {"failures": [], "loss": 2 / number, "accuracy": 0.5, "bytes": sent, "seconds": 1.0}
                metrics.write(json.dumps(line | more) + "\n")
            line = {
                "round": number,
                "scope": "global",
                "accuracy": spread,
                "loss": spread,
                "clients": own,
                "failures": 0,
            }
            metrics.write(json.dumps(line | {"bytes": sent, "seconds": 4.0, "wall_seconds": 4.0 * number}) + "\n")
            took = {"edge_rounds": 2, "training_seconds": 0.1, "waiting_seconds": 0.2, "transfer_seconds": 0.01}
            of_clients = {str(i): {"edge": f"edge-{i % edges}", **took} for i in range(clients)}
            line = {"round": number, "scope": "seconds", "clients": of_clients, "edges": dict.fromkeys(members, took)}
            seconds.write(json.dumps(line) + "\n")
    return folder
