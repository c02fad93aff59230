"""A Ray of the tests' own."""

from collections.abc import Iterator

import pytest

NUM_CORES = 4  # as Ray counts them: the tests' workers mostly wait


@pytest.fixture(scope="session")
def ray_here() -> Iterator[None]:
    """Start Ray for all tests of this process that want it; a worker serves one run of the app after the other."""
    from espalier.app.engines import ray
    from espalier.app.engines.ray_cluster import started_ray
    from tests.kept_workers import KeptWorkers

    with started_ray("", num_cores=NUM_CORES), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "Workers", KeptWorkers)
        yield
