"""Image folders of clients' own, cut from one that a partition shares out."""

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from espalier.app.config.run_config import RunConfig
from espalier.app.tasks.image_folder import list_images
from espalier.app.wiring.task_of_run import build_task

CLASSES = ("ant", "bee", "cow")
SMALL = {"dataset": "image-folder", "image_size": 8, "model": "small-cnn", "num_clients": 4}
OWN = {**SMALL, "partition": "own", "classes": "ant,bee,cow", "pixel_mean": "0.5,0.5,0.5", "pixel_std": "0.25,0.25,0.3"}


def noise_folder(root: Path, *, train: int = 20, test: int = 6) -> Path:
    """Write so many noisy images of every class and pool."""
    rng = np.random.default_rng(0)
    for pool, count in (("train", train), ("test", test)):
        for label, name in enumerate(CLASSES):
            (root / pool / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 150, (8, 8, 3), dtype=np.uint8)
                pixels[..., label] += 100
                Image.fromarray(pixels).save(root / pool / name / f"{i:02}.png")
    return root


def cut(whole: Path, config: RunConfig, folder_of) -> dict[str, str]:
    """Copy every client's images to `folder_of(client)`; return what a run on them has to be told."""
    listing, task = list_images(whole), build_task(config)
    for client, indices in enumerate(task.client_indices):
        for pool, own in ((listing.train, indices.train), (listing.test, indices.test)):
            for i in own:
                target = folder_of(client) / pool[i].relative_to(whole)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(pool[i], target)
    mean, std = (",".join(map(repr, numbers)) for numbers in (task.data.mean, task.data.std))
    return {"classes": ",".join(task.data.classes), "pixel_mean": mean, "pixel_std": std}


def own_folders(root: Path, num_clients: int = 4) -> Path:
    """Write a test pool and a folder for each client, with all classes."""
    for client in range(num_clients):
        noise_folder(root / str(client), train=5, test=2)
    shutil.copytree(root / "0" / "test", root / "test")
    return root
