"""The message vocabulary: message types, record names and keys that servers and devices share.

Every name that travels in a message is defined here once. ``docs/messages.md`` explains them in a table.
"""

from typing import Final

# Message types (Flower routes "<category>.<action>" to the handler registered under that name).
TRAIN: Final = "train"
EVALUATE: Final = "evaluate"
QUERY_PROFILE: Final = "query.profile"

# Records of a message.
ARRAYS: Final = "arrays"
CONFIG: Final = "config"
METRICS: Final = "metrics"
PROFILE: Final = "profile"

# Keys of the config record of an instruction; the names are those of Flower's strategies.
SERVER_ROUND: Final = "server-round"
PROXIMAL_MU: Final = "proximal-mu"

# Keys of the metric record of a reply. "train_loss" is the name that Flower's QFedAvg looks for.
NUM_EXAMPLES: Final = "num-examples"
TRAIN_LOSS: Final = "train_loss"
LOSS: Final = "loss"
ACCURACY: Final = "accuracy"

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
