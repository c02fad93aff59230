"""Flower Datasets' partitioners by name: who holds which samples, as the library deals them out."""

import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np

from espalier.app.ground.errors import FAULTS, bad_value
from espalier.app.ground.object_spec import ObjectSpec, error_line
from espalier.app.ground.registered import call_with, load_built_in, unknown_name

PLACE = "flwr_datasets.partitioner"
INSTALL = "'espalier-fl[flwr-datasets]'"
LABEL = "label"


def flower_indices(
    spec: ObjectSpec, labels: np.ndarray, columns: Mapping[str, np.ndarray], num_clients: int, seed: int
) -> list[np.ndarray]:
    """Return the indices of each client's samples, in the library's order.

    The partitioner gets the samples in an order drawn by the seed, as ``FederatedDataset`` shuffles them: in the order
    of their files, which often are sorted by class, neighbours would go to one client.

    Parameters
    ----------
    spec : ObjectSpec
        Names the partitioner, with its arguments. Of ``num_partitions``, the clients, ``partition_by``, ``"label"``,
        and ``seed`` it gets those that it takes and that are not written.
    labels : np.ndarray
        The class of each training sample, its column ``label``.
    columns : Mapping[str, np.ndarray]
        Further columns by name; one of the name ``label`` wins.
    num_clients : int
        Clients of the run.
    seed : int
        The run's.

    Raises
    ------
    UserError
        If Flower Datasets is not installed, has no such partitioner, it refuses the arguments or the data, or makes
        another number of partitions.
    """
    datasets = load_built_in("datasets:Dataset", spec.key, spec.text, "datasets", INSTALL)
    kinds = load_built_in(f"{PLACE}:__all__", spec.key, spec.text, "flwr_datasets", INSTALL)
    kinds = [name for name in kinds if not name.startswith("Vertical") and name != "Partitioner"]
    if spec.name not in kinds:
        raise unknown_name(spec, kinds, "one of these in front of its arguments")
    rows = "espalier-row"
    known = {LABEL: labels, **columns, rows: np.arange(len(labels))}
    order = np.random.default_rng(seed).permutation(len(labels))
    given = datasets.from_dict({name: np.asarray(values)[order] for name, values in known.items()})
    offered = {"num_partitions": num_clients, "partition_by": LABEL, "seed": seed}
    partitioner = call_with(replace(spec, module=PLACE), offered)
    try:
        with redirect_stdout(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # pyarrow's, of how the library calls it
            partitioner.dataset = given
            count = partitioner.num_partitions
            parts = [_rows(partitioner, part, rows) for part in range(count if count == num_clients else 0)]
    except FAULTS as error:
        allowed = f"a partitioner that takes the columns {', '.join(sorted(known.keys() - {rows}))}"
        raise bad_value(spec.key, spec.text, f"{allowed} ({error_line(error)})") from None
    if count != num_clients:
        allowed = f"a partitioner that makes num-clients = {num_clients} partitions, not {count}"
        raise bad_value(spec.key, spec.text, allowed)
    return parts


def _rows(partitioner: Any, part: int, column: str) -> np.ndarray:
    return np.array(partitioner.load_partition(part)[column][:], dtype=np.int64)
