"""The families of tasks: each gives the model, the data and the clients' tasks of a run config."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn

from espalier.app.config.sections import OWN, VIDEO_CACHING, RunConfig
from espalier.app.tasks import caching, images, own_images
from espalier.app.tasks.node import Node
from espalier.clients.task import ClientTask, Examples


class Family(Protocol):
    """What the rest of the app asks of a family; the modules `images`, `own_images` and `caching` are some."""

    def check_data(self, config: RunConfig) -> None:
        """Raise UserError if the data can't be had."""

    def data_fingerprint(self, config: RunConfig) -> str:
        """Return a hash of the data."""

    def new_model(self, config: RunConfig) -> nn.Sequential:
        """Return the model with the initial weights that the seed gives."""

    def input_shape(self, config: RunConfig) -> tuple[int, ...]:
        """Return the shape of one example as the model takes it."""

    def test_examples(self, config: RunConfig) -> Examples:
        """Return the whole test pool."""

    def normaliser(self, config: RunConfig) -> Callable[[Tensor], Tensor]:
        """Return the function from inputs of `test_examples` to those of the model."""

    def new_client_task(self, config: RunConfig, model: nn.Module, node: Node) -> ClientTask:
        """Return the task of one client, which works on `model`."""

    def centralised_task(self, config: RunConfig) -> ClientTask:
        """Return the task of one client that has all the data."""


def family(config: RunConfig) -> Family:
    """Return the family that a config's data set belongs to."""
    if config.data.dataset == VIDEO_CACHING:
        return caching
    return own_images if config.data.partition == OWN else images
