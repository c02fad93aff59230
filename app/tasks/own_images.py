"""The image tasks of clients that have folders of their own, which nobody else sees.

Nothing is partitioned. Classes, size and statistics of the images, which a pool of all data would give, are the run
config's; the server has a test pool only.
"""

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import torch
from torch import nn

from espalier.app.ground.errors import UserError
from espalier.app.settings.sections import Data
from espalier.app.tasks.data import LabelledImages, load_pool
from espalier.app.tasks.image_data import channel_statistics
from espalier.app.tasks.image_folder import FILES, LAYOUT
from espalier.app.tasks.images import ImageTask, cache_folder, examples
from espalier.app.tasks.node import ClientNode
from espalier.clients.task import ClientTask, Examples, LocalTraining

CHANNELS = 3  # images of folders become RGB


class OwnImagesTask(ImageTask):
    """Images of a folder of each client's own.

    Parameters
    ----------
    section, training, seed, device, splits_for
        As for `ImageTask`.
    has_pool : bool
        The server's test pool is here.
    num_clients_here : int
        Clients whose folders are here.
    """

    def __init__(
        self,
        section: Data,
        training: LocalTraining,
        seed: int,
        device: torch.device,
        *,
        has_pool: bool,
        num_clients_here: int,
        splits_for: str = "",
    ) -> None:
        super().__init__(section, training, num_clients_here, seed, device, splits_for=splits_for)
        self.has_pool = has_pool

    @property
    def classes(self) -> Sequence[str]:
        """The classes' names, in the order of the model's outputs."""
        return self.section.classes.items

    @property
    def mean_and_std(self) -> tuple[Sequence[float], Sequence[float]]:
        """What pixels from 0 to 1 are normalised by, per channel."""
        return self.section.pixel_mean.numbers, self.section.pixel_std.numbers

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return CHANNELS, self.section.image_size, self.section.image_size

    @cached_property
    def pool(self) -> LabelledImages:
        """The test pool, ``<data-dir>/test``; UserError if it holds no images, or those of a class not the run's."""
        root = Path(self.section.data_dir).expanduser().absolute()
        return self._not_empty(root / "test", self._load(root, "test"))

    def check_data(self) -> None:
        """Load the server's test pool and the clients' folders where they are here."""
        if self.has_pool:
            self.pool  # noqa: B018
        for i in range(self.num_clients):
            self.client_pools(ClientNode(i))
        self.check_own_model(has_pool=self.has_pool)

    def data_fingerprint(self) -> str:
        """Return a hash of the classes and of the server's test pool: its labels, and its pixels' statistics."""
        content = repr((self.section.classes.items, channel_statistics(self.pool.images))).encode()
        return sha256(content + self.pool.labels.tobytes()).hexdigest()

    def test_examples(self) -> Examples:
        """Return the server's test pool."""
        return examples(self.pool)

    def num_examples(self, client: int) -> None:
        """Leave it to the client: its folder has to be read."""

    def new_client_task(self, model: nn.Module, node: ClientNode) -> ClientTask:
        """Return the task of one client, which works on `model`."""
        train, test = self.client_pools(node)
        kept, held = self.kept_and_held(len(train.labels), node.partition_id)
        validation = examples(train, held) if held is not None else None
        return self.task_of(model, node, examples(train, kept), examples(test), validation)

    def centralised_task(self) -> ClientTask:
        """Refuse: nobody has all the data; a validated config does not ask for it."""
        raise ValueError("clients with folders of their own have no common training pool")

    def client_pools(self, node: ClientNode) -> tuple[LabelledImages, LabelledImages]:
        """Return a client's training and test images; there may be none to test on.

        Raises
        ------
        UserError
            Its folder is missing, has no training images, or has a class that is not the run's.
        """
        root = self.client_folder(node)
        train, test = (self._load(root, pool) for pool in ("train", "test"))
        return self._not_empty(root / "train", train), test

    def client_folder(self, node: ClientNode) -> Path:
        """Return a client's folder: the one that its node's config names, else ``<data-dir>/<partition-id>``."""
        if not node.data_dir:
            return Path(self.section.data_dir).expanduser().absolute() / str(node.partition_id)
        try:
            folder = Path(node.data_dir).expanduser()
        except RuntimeError:  # there is no home folder of that user
            folder = Path(node.data_dir)
        if not folder.is_absolute():
            raise UserError(f"data-dir = {node.data_dir!r} in the node's config: allowed is an absolute path")
        return folder

    def _load(self, root: Path, pool: str) -> LabelledImages:
        try:
            if not root.is_dir():
                raise UserError(f"{root}: no such folder: {LAYOUT}")
            return load_pool(
                root / pool,
                classes=self.section.classes.items,
                image_size=self.section.image_size,
                cache_dir=cache_folder(self.section),
            )
        except (OSError, MemoryError) as error:
            raise UserError(f"{root / pool}: can't be read ({error})") from None

    def _not_empty(self, folder: Path, pool: LabelledImages) -> LabelledImages:
        if len(pool.labels) == 0:
            names = ", ".join(self.section.classes.items)
            raise UserError(f"{folder}: holds no images in folders named {names}: {FILES}")
        return pool
