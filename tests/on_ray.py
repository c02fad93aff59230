"""A Ray of the tests' own."""

from collections.abc import Iterator

import pytest

NUM_CORES = 4  # as Ray counts them: the tests' workers mostly wait


@pytest.fixture(scope="session")
def ray_here() -> Iterator[None]:
    """Start Ray for all tests of this process that want it."""
    from espalier.app.engines.ray_cluster import started_ray

    with started_ray("", num_cores=NUM_CORES):
        yield
