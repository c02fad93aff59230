"""The image tasks of clients that have folders of their own, which nobody else sees.

Nothing is partitioned. Classes, size and statistics of the images, which a pool of all data would give, are the run
config's; the server has a test pool only.
"""

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from torch import Tensor, nn

from espalier.app.config.sections import RunConfig
from espalier.app.errors import UserError
from espalier.app.tasks import images
from espalier.app.tasks.common import compute_device
from espalier.app.tasks.data import LabelledImages, load_pool
from espalier.app.tasks.image_data import channel_statistics
from espalier.app.tasks.image_folder import FILES, LAYOUT
from espalier.app.tasks.node import Node
from espalier.clients.task import ClientTask, Examples

CHANNELS = 3  # images of folders become RGB


def check_data(config: RunConfig) -> None:
    """Load the server's test pool, and where clients are simulated in this process their folders too."""
    if config.deploy.role != "edge":  # an edge host evaluates on its devices only
        server_pool(config)
    if config.engine == "in-process":
        for i in range(config.federation.num_clients):
            client_pools(config, Node(i))


def data_fingerprint(config: RunConfig) -> str:
    """Return a hash of the classes and of the server's test pool: its labels, and its pixels' statistics."""
    pool = server_pool(config)
    content = repr((config.data.classes.items, channel_statistics(pool.images))).encode()
    return sha256(content + pool.labels.tobytes()).hexdigest()


def new_model(config: RunConfig) -> nn.Sequential:
    """Return the config's model with the initial weights that its seed gives."""
    return images.model_for(config, input_shape(config), len(config.data.classes.items))


def input_shape(config: RunConfig) -> tuple[int, int, int]:
    """Return channels, height and width of an image."""
    return CHANNELS, config.data.image_size, config.data.image_size


def normaliser(config: RunConfig) -> Callable[[Tensor], Tensor]:
    """Return the function from uint8 pixels (N, C, H, W) to the float32 input of the model."""
    return images.normalise_by(config.data.pixel_mean.numbers, config.data.pixel_std.numbers, compute_device(config))


def test_examples(config: RunConfig) -> Examples:
    """Return the server's test pool."""
    return images.examples(server_pool(config))


def new_client_task(config: RunConfig, model: nn.Module, node: Node) -> ClientTask:
    """Return the task of one client, which works on `model`."""
    train, test = (images.examples(pool) for pool in client_pools(config, node))
    return images.task_of(config, model, node, train, test, normaliser(config), len(config.data.classes.items))


def centralised_task(config: RunConfig) -> ClientTask:
    """Refuse: nobody has all the data; a validated config does not ask for it."""
    raise ValueError("clients with folders of their own have no common training pool")


def server_pool(config: RunConfig) -> LabelledImages:
    """Return the test pool, ``<data-dir>/test``.

    Raises
    ------
    UserError
        It holds no images, or those of a class that is not the run's.
    """
    return _server_pool(
        config.data.data_dir, config.data.classes.items, config.data.image_size, images.cache_folder(config)
    )


@lru_cache(maxsize=1)
def _server_pool(data_dir: str, classes: tuple[str, ...], image_size: int, cache_dir: Path) -> LabelledImages:
    root = Path(data_dir).expanduser().absolute()
    return _not_empty(root / "test", _load(root, "test", classes, image_size, cache_dir), classes)


def client_pools(config: RunConfig, node: Node) -> tuple[LabelledImages, LabelledImages]:
    """Return a client's training and test images; there may be none to test on.

    Raises
    ------
    UserError
        Its folder is missing, has no training images, or has a class that is not the run's.
    """
    root, classes = client_folder(config, node), config.data.classes.items
    train, test = (
        _load(root, pool, classes, config.data.image_size, images.cache_folder(config)) for pool in ("train", "test")
    )
    return _not_empty(root / "train", train, classes), test


def client_folder(config: RunConfig, node: Node) -> Path:
    """Return a client's folder: the one its node's config names, else ``<data-dir>/<partition-id>`` of the run's."""
    if not node.data_dir:
        return Path(config.data.data_dir).expanduser().absolute() / str(node.partition_id)
    try:
        folder = Path(node.data_dir).expanduser()
    except RuntimeError:  # there is no home folder of that user
        folder = Path(node.data_dir)
    if not folder.is_absolute():
        raise UserError(f"data-dir = {node.data_dir!r} in the node's config: allowed is an absolute path")
    return folder


def _load(root: Path, pool: str, classes: tuple[str, ...], image_size: int, cache_dir: Path) -> LabelledImages:
    try:
        if not root.is_dir():
            raise UserError(f"{root}: no such folder: {LAYOUT}")
        return load_pool(root / pool, classes=classes, image_size=image_size, cache_dir=cache_dir)
    except (OSError, MemoryError) as error:
        raise UserError(f"{root / pool}: can't be read ({error})") from None


def _not_empty(folder: Path, pool: LabelledImages, classes: tuple[str, ...]) -> LabelledImages:
    if len(pool.labels) == 0:
        raise UserError(f"{folder}: holds no images in folders named {', '.join(classes)}: {FILES}")
    return pool
