"""An engine whose edges are nodes of a grid in this process, served by several apps in turn, as workers would."""

import pickle
from itertools import cycle
from pathlib import Path

from espalier.app.engines.in_process import InProcess
from espalier.app.reports.progress import LogProgress
from espalier.app.run.run import run
from espalier.clients.messages.profile import EDGE_NAME
from espalier.sim.in_process_grid import InProcessGrid
from tests.app.assembling import config_of
from tests.app.runs import SHORT


class ServingInProcess(InProcess):
    """Edges as requests; each message is answered by the next of some workers."""

    num_workers = 3
    fails = staticmethod(lambda name, message_type, count: False)

    def serve_edges(self, make_app, sizes):
        packed = pickle.dumps(make_app)
        apps = cycle([pickle.loads(packed)() for _ in range(self.num_workers)])
        self.asked = []

        def answer(message, context):
            self.asked.append((context.node_config[EDGE_NAME], message.metadata.message_type))
            if self.fails(*self.asked[-1], self.asked.count(self.asked[-1])):
                raise RuntimeError("the worker\nis gone")
            return next(apps)(message, context)

        return InProcessGrid(answer, len(sizes), node_configs=[{EDGE_NAME: name} for name in sizes], seed=99)


def run_served(folder: Path, *, fails=None, progress=None, engine_kind=ServingInProcess, **settings) -> Path:
    """Run with served edges into `folder`, as `tests.app.runs.run_app` does in one process."""
    config = config_of(**SHORT | {"output_dir": str(folder), "engine": "in-process"} | settings)
    engine = engine_kind.open(config.federation.num_clients, config.as_dict(), config.seed)
    if fails:
        engine.fails = fails
    return run(config, engine, progress or LogProgress(), folder.parent)
