import pytest

from tests.app.runs import run_app

PLANNED = {"algorithm": "rawhfl", "num_clients": 6, "num_edges": 2, "plan.selected-per-edge": 2, "batches_per_epoch": 1}


@pytest.fixture(scope="package")
def planned(tmp_path_factory):
    """A run with plans, whose clients drop out now and then."""
    return run_app(tmp_path_factory.mktemp("runs") / "planned", global_rounds=3, availability_drop_out=0.2, **PLANNED)
