"""The ServerApp, as Flower finds it."""

import logging
from pathlib import Path

from espalier.app.ground.imports import uncollected

with uncollected():
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

    from espalier.app.config.keys import keys_tagged
    from espalier.app.config.parse import parse_config
    from espalier.app.engines.flower import Flower
    from espalier.app.ground.errors import bad_value
    from espalier.app.ground.logs import WithoutTraceback, quiet_flower, show_own_lines
    from espalier.app.ground.terminal import lasting_terminal
    from espalier.app.reports.final import result_table
    from espalier.app.reports.folder import ResultsFolder
    from espalier.app.reports.progress import LogProgress
    from espalier.app.run.run import engine_of, run, run_edge
    from espalier.app.settings.section import Tag

app = ServerApp()


@app.main()
@lasting_terminal()
def main(grid: Grid, context: Context) -> None:
    """Run what the run config asks for."""
    show_own_lines()
    quiet_flower()
    logging.getLogger("flwr").addFilter(WithoutTraceback())
    config = parse_config(context.run_config)
    settings = config.as_dict()
    for key in sorted(keys_tagged(Tag.PATH)):
        value = settings[key]
        if value and not Path(value).expanduser().is_absolute():
            raise bad_value(key, value, "an absolute path (a relative one would start at the SuperLink's folder)")
    results = Path.home() / "espalier-results"
    if not config.here.has_cloud:
        run_edge(config, Flower(grid), results)
        return
    with engine_of(config, grid) as engine:
        path = run(config, engine, LogProgress(), results)
    print(result_table(ResultsFolder(path).read_json("summary.json")))
    print(f"results: {path}", flush=True)
