"""The message vocabulary: message types, record names and keys that servers and devices share.

Every name that travels in a message is defined here once. ``docs/messages.md`` explains them in a table. So is the form
of the tensors at the cut layer, which travel on every step.
"""

from functools import lru_cache
from io import BytesIO
from typing import Final
from zlib import crc32

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

# Key of the query that asks for measurements, and keys of the profile with them. Those from `LINK_BITS_PER_SECOND` on,
# and `MAX_FREQUENCY_HZ`, are keys of a node's config, too.
MEASURE: Final = "measure"
CPU_COUNT: Final = "cpu-count"
MIN_FREQUENCY_HZ: Final = "min-frequency-hz"
MAX_FREQUENCY_HZ: Final = "max-frequency-hz"
MEMORY_BYTES: Final = "memory-bytes"
CYCLES_PER_EXAMPLE: Final = "cycles-per-example"
LINK_BITS_PER_SECOND: Final = "link-bits-per-second"
ENERGY_BUDGET_JOULES: Final = "energy-budget-joules"
MAX_POWER_WATTS: Final = "max-power-watts"
CAPACITANCE: Final = "capacitance"

# Record of a node's state: what it knows of its link, under `LINK_BITS_PER_SECOND`.
LINK: Final = "link"

# Split training. A round of S steps is S + 1 exchanges: begin, S - 1 steps, end.
SPLIT_BEGIN: Final = "train.split_begin"
SPLIT_STEP: Final = "train.split_step"
SPLIT_END: Final = "train.split_end"
SPLIT_FEATURES: Final = "train.split_features"
QUERY_LABELS: Final = "query.labels"

# One message for the whole round, whose mini-batches go through a stream (`espalier.clients.messages.frames`).
SPLIT_STREAM: Final = "train.split_stream"

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
LABELS_DIGEST: Final = "labels-digest"
# A client refuses an instruction with this word where the digest is not that of its labels.
LABELS_CHANGED: Final = "labels-changed"

# Keys of the config record that tell a client where its stream goes, and on what terms.
STREAM_ADDRESS: Final = "stream-address"
STREAM_CERTIFICATE: Final = "stream-certificate"
STREAM_TOKEN: Final = "stream-token"
STREAM_PAYLOAD: Final = "stream-payload"
STREAM_TIMEOUT: Final = "stream-timeout"
STREAM_MAX_BYTES: Final = "stream-max-bytes"

# Code of the error reply of a client whose stream the edge called off; other codes of this project are in
# `espalier.strategies.exchange`.
STREAM_WITHDRAWN: Final = 1101

# Between the cloud and the gateway of an edge that has a host of its own.
QUERY_EDGE: Final = "query.edge"
TRAIN_EDGE: Final = "train.edge"
TRAIN_EDGE_HEADS: Final = "train.edge_heads"
EVALUATE_EDGE: Final = "evaluate.edge"
PAYLOAD: Final = "payload"
WAIT_SECONDS: Final = "wait-seconds"
REPLY_SECONDS: Final = "reply-seconds"
EDGE_FOLDER: Final = "edge-folder"  # the key of a node's config that makes it a gateway


def to_array(tensor: Tensor) -> Array:
    """Return activations or a cut gradient as they travel: in NumPy's format, images channels last.

    Parameters
    ----------
    tensor : Tensor
        Of any shape; images (N, C, H, W) travel as (N, H, W, C), as convolutions like them in memory.
    """
    values = as_travels(tensor).numpy()
    data = b"".join((_header(values.dtype.str, values.shape), memoryview(values.reshape(-1)).cast("B")))
    return Array(str(values.dtype), values.shape, "numpy.ndarray", data)


def to_tensor(array: Array) -> Tensor:
    """Return the tensor that `to_array` packed.

    Raises
    ------
    ValueError
        If the data are not those of an array of the dtype and the shape that the record names.
    """
    header = _header(_dtype(array.dtype).str, tuple(array.shape))
    if not array.data.startswith(header):
        raise ValueError(f"the data are not those of an array of {array.dtype} of shape {tuple(array.shape)}")
    # A copy, since torch shares no memory that can't be written to.
    values = np.frombuffer(bytearray(memoryview(array.data)[len(header) :]), array.dtype).reshape(array.shape)
    return as_computed(torch.from_numpy(values))


def labels_digest(labels: np.ndarray) -> int:
    """Return a number that tells labels from others: CRC-32 of them as little-endian int32."""
    return crc32(np.ascontiguousarray(labels, "<i4"))


def as_travels(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU, without its graph, images (N, C, H, W) channels last."""
    tensor = tensor.detach()
    return (tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor).cpu().contiguous()


def as_computed(tensor: Tensor) -> Tensor:
    """Return what travelled channels last as the images (N, C, H, W) that it was."""
    return tensor.permute(0, 3, 1, 2) if tensor.dim() == 4 else tensor


def _dtype(name: str) -> np.dtype:
    """Return the data type of a name that came in a message; ValueError if there is none."""
    try:
        return np.dtype(name)
    except Exception:  # NumPy parses it, and "(1," is a SyntaxError
        raise ValueError(f"{name!r} is not a data type") from None


@lru_cache(maxsize=64)
def _header(descr: str, shape: tuple[int, ...]) -> bytes:
    """Return what NumPy's format puts in front of the values; it takes as long to make as the values to copy."""
    buffer = BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()
