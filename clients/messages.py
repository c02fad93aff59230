"""The message vocabulary: message types, record names and keys that servers and devices share.

Every name that travels in a message is defined here once. ``docs/messages.md`` explains them in a table. So is the form
of the tensors at the cut layer, which travel on every step.
"""

from functools import lru_cache
from io import BytesIO
from typing import Final

import numpy as np
import torch
from flwr.app import Array
from torch import Tensor

# Message types (Flower routes "<category>.<action>" to the handler registered under that name).
TRAIN: Final = "train"
EVALUATE: Final = "evaluate"
QUERY_PROFILE: Final = "query.profile"
TRAIN_ACCUMULATED: Final = "train.accumulated"

# Records of a message.
ARRAYS: Final = "arrays"
CONFIG: Final = "config"
METRICS: Final = "metrics"
PROFILE: Final = "profile"
ACCUMULATED_GRADIENT: Final = "accumulated-gradient"

# Keys of the config record of an instruction; the names are those of Flower's strategies.
SERVER_ROUND: Final = "server-round"
PROXIMAL_MU: Final = "proximal-mu"

# Keys of the config record by which an edge tells a client its plan.
LOCAL_ROUNDS: Final = "local-rounds"
CPU_FREQUENCY_HZ: Final = "cpu-frequency-hz"
TRANSMIT_POWER_WATTS: Final = "transmit-power-watts"

# Keys of the metric record of a reply. "train_loss" is the name that Flower's QFedAvg looks for.
NUM_EXAMPLES: Final = "num-examples"
TRAIN_LOSS: Final = "train_loss"
LOSS: Final = "loss"
ACCURACY: Final = "accuracy"
TOP: Final = "top-"  # and M: the share of examples whose label is among the M likeliest

# Keys of the profile that a device reports.
PARTITION_ID: Final = "partition-id"
EDGE_NAME: Final = "edge-name"
NUM_TRAIN_EXAMPLES: Final = "num-train-examples"
NUM_TEST_EXAMPLES: Final = "num-test-examples"
CLASS_COUNTS: Final = "class-counts"

# Split training. A round of S steps is S + 1 exchanges: begin, S - 1 steps, end.
SPLIT_BEGIN: Final = "train.split_begin"
SPLIT_STEP: Final = "train.split_step"
SPLIT_END: Final = "train.split_end"
SPLIT_FEATURES: Final = "train.split_features"
QUERY_LABELS: Final = "query.labels"

# Records of split training.
CLIENT_BLOCK: Final = "client-block"
ACTIVATIONS: Final = "activations"
CUT_GRADIENT: Final = "cut-gradient"
INDICES: Final = "indices"
LABELS: Final = "labels"

# Keys of split training.
CUT: Final = "cut"
STEP: Final = "step"
NUM_STEPS: Final = "num-steps"
LABEL_POLICY: Final = "label-policy"


def to_array(tensor: Tensor) -> Array:
    """Return activations or a cut gradient as they travel: in NumPy's format, images channels last.

    Parameters
    ----------
    tensor : Tensor
        Of any shape; images (N, C, H, W) travel as (N, H, W, C), as convolutions like them in memory.
    """
    tensor = tensor.detach()
    values = (tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor).cpu().contiguous().numpy()
    data = b"".join((_header(values.dtype.str, values.shape), memoryview(values.reshape(-1)).cast("B")))
    return Array(str(values.dtype), values.shape, "numpy.ndarray", data)


def to_tensor(array: Array) -> Tensor:
    """Return the tensor that `to_array` packed.

    Raises
    ------
    ValueError
        If the data are not those of an array of the dtype and the shape that the record names.
    """
    header = _header(np.dtype(array.dtype).str, tuple(array.shape))
    if not array.data.startswith(header):
        raise ValueError(f"the data are not those of an array of {array.dtype} of shape {tuple(array.shape)}")
    # A copy, since torch shares no memory that can't be written to.
    values = np.frombuffer(bytearray(memoryview(array.data)[len(header) :]), array.dtype).reshape(array.shape)
    tensor = torch.from_numpy(values)
    return tensor.permute(0, 3, 1, 2) if tensor.dim() == 4 else tensor


@lru_cache(maxsize=64)
def _header(descr: str, shape: tuple[int, ...]) -> bytes:
    """Return what NumPy's format puts in front of the values; it takes as long to make as the values to copy."""
    buffer = BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()
