"""What cutting a model costs over training it whole.

``python benchmarks/split.py`` trains `cnn` on 32x32 colour images with 5 clients x 200 mini-batches of 32, in turns as
SFL-V1 on the in-process engine and as a bare PyTorch loop with the same forward and backward passes on the unsplit
model. It prints seconds per round of both (median of 3, after a warm-up), their ratio, and the largest difference
between the weights they end with. Pixels are random; one thread; no evaluation.
"""

import sys
import tempfile
from pathlib import Path

from app.config import parse_config
from app.logs import quiet_flower
from benchmarks.hierarchical import measure, random_pixels


def main() -> None:
    """Measure and print."""
    quiet_flower()
    with tempfile.TemporaryDirectory() as folder:
        data_dir = sys.argv[1] if len(sys.argv) > 1 else random_pixels(Path(folder))
        measure(
            parse_config(
                {
                    "algorithm": "sfl-v1",
                    "dataset": "image-folder",
                    "data-dir": str(Path(data_dir).absolute()),
                    "cache-dir": f"{folder}/cache",
                    "partition": "iid",
                    "num-clients": 5,
                    "global-rounds": 5,
                    "local-epochs": 1,
                    "batches-per-epoch": 200,
                    "learning-rate": 0.01,
                    "evaluate-every": 0,
                    "engine": "in-process",
                }
            )
        )


if __name__ == "__main__":
    main()
