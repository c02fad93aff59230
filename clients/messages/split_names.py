"""Names in the messages of split models: message types, records and keys."""

from typing import Final

SPLIT_BEGIN: Final = "train.split_begin"
SPLIT_TAIL: Final = "train.split_tail"
SPLIT_STEP: Final = "train.split_step"
SPLIT_END: Final = "train.split_end"
SPLIT_STREAM: Final = "train.split_stream"
SPLIT_FUSED: Final = "train.split_fused"
SPLIT_LOCAL: Final = "train.split_local"
SPLIT_FEATURES: Final = "train.split_features"
SPLIT_HEAD: Final = "train.split_head"
EVALUATE_FRONT: Final = "evaluate.split_front"
EVALUATE_OUTPUTS: Final = "evaluate.split_outputs"
QUERY_LABELS: Final = "query.labels"

# Records.
CLIENT_BLOCK: Final = "client-block"
ACTIVATIONS: Final = "activations"
FEATURES: Final = "features"
OUTPUTS: Final = "outputs"
FEATURE_GRADIENT: Final = "feature-gradient"
CUT_GRADIENT: Final = "cut-gradient"
INDICES: Final = "indices"
LABELS: Final = "labels"
LENGTHS: Final = "lengths"

# Keys.
CUT: Final = "cut"
TAIL: Final = "tail"
FROZEN_HEAD: Final = "frozen-head"
UPLOAD_EVERY: Final = "upload-every"
STEP: Final = "step"
NUM_STEPS: Final = "num-steps"
LEARNING_RATE: Final = "learning-rate"
OWN_HEAD: Final = "own-head"
LABEL_POLICY: Final = "label-policy"
LABELS_DIGEST: Final = "labels-digest"
STREAM_PAYLOAD: Final = "stream-payload"
STREAM_TIMEOUT: Final = "stream-timeout"
STREAM_PARTS: Final = "stream-parts"

# A label policy: the client computes the loss, and no label leaves it.
KEPT: Final = "kept"

# What the names of an auxiliary head's weights begin with; no block of a model can have it.
AUXILIARY_HEAD: Final = "auxiliary-head"

# A client refuses an instruction with this word where its labels are not those that it registered.
LABELS_CHANGED: Final = "labels-changed"
# Code of the error reply of a client whose stream the edge called off; other codes of this project are in
# `espalier.strategies.exchange`.
STREAM_WITHDRAWN: Final = 1101
