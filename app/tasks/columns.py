"""The task of a set of texts, or of a table, which a partition shares out to the clients."""

from collections import OrderedDict
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import nn

from espalier.app.ground.errors import bad_value
from espalier.app.ground.object_spec import ObjectSpec
from espalier.app.ground.registered import call_with
from espalier.app.settings.sections import Data
from espalier.app.tasks.adapted import AdaptedTask
from espalier.app.tasks.dataset import Told, told_of
from espalier.app.tasks.hub import IMAGES, TEXT, HubSet, open_set
from espalier.app.tasks.hub_examples import Rows, rows_of
from espalier.app.tasks.models import AUTO
from espalier.app.tasks.own import OwnTask, Pool
from espalier.clients.task import Examples

WIDTH = 64


class ColumnsTask(AdaptedTask):
    """Texts or a table of a library's set, with a model of the user's own or a small one; parameters as `AdaptedTask`.

    It is shared out and tried as the pool of a user's own task is.
    """

    has_own_model = False
    own: "_Columns"

    @cached_property
    def told(self) -> Told:
        """What the settings tell of the set."""
        return told_of(self.section, self.seed)

    def describe(self) -> dict[str, Any]:
        """Return the model's name, the classes, and what inputs are made by."""
        about = {"model": self.section.model.text, "classes": list(self.own.opened.classes)}
        return {**about, "input_shape": list(self.own.rows.offered["input_shape"]), **self.own.rows.about}

    def columns(self) -> dict[str, np.ndarray]:
        """Return the training pool's columns that partitioners can go by."""
        return self.own.opened.columns()

    def _made(self) -> "_Columns":
        opened = open_set(self.section.dataset, self.told)
        model = self.section.model
        if not (model.module or model.text == AUTO):
            allowed = f"{AUTO!r} or package.module:NAME(argument=value, ...) of your own"
            raise bad_value(model.key, model.text, f"{allowed} for {self.section.source}, which is {opened.kind}")
        self.spec = model if model.module else self.section.dataset
        self._shares_out = True
        return _Columns(opened, rows_of(opened, self.told), model)


def holds_images(section: Data, seed: int) -> bool:
    """Return whether a library's set is one of images; it is opened for that."""
    return open_set(section.dataset, told_of(section, seed)).kind == IMAGES


class _Columns(OwnTask):
    """Examples of tensors and a model for them."""

    def __init__(self, opened: HubSet, rows: Rows, spec: ObjectSpec) -> None:
        self.opened, self.rows, self._spec = opened, rows, spec

    def pool(self) -> Pool:
        labels = map(torch.from_numpy, (self.opened.train_labels, self.opened.test_labels))
        return Pool(*map(Examples, (self.rows.train, self.rows.test), labels))

    def model(self) -> nn.Module:
        offered = {"num_classes": len(self.opened.classes), **self.rows.offered}
        if self._spec.module:
            return call_with(self._spec, offered, to_any=("num_classes",))
        return (text_model if self.opened.kind == TEXT else table_model)(**offered)

    def fingerprint(self) -> str:
        arrays = (self.rows.train, self.rows.test, self.opened.train_labels, self.opened.test_labels)
        digest = sha256(repr(self.opened.classes).encode())
        for array in arrays:
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def table_model(num_classes: int, input_shape: tuple[int]) -> nn.Sequential:
    """Return a network of two hidden layers: blocks ``fc1``, ``fc2``, ``head``."""
    return nn.Sequential(
        OrderedDict(
            fc1=nn.Sequential(nn.Linear(input_shape[0], WIDTH), nn.ReLU()),
            fc2=nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()),
            head=nn.Linear(WIDTH, num_classes),
        )
    )


def text_model(num_classes: int, input_shape: tuple[int], num_tokens: int, padding: int) -> nn.Sequential:
    """Return a network on the mean of a text's embeddings: blocks ``embedding``, ``fc1``, ``head``."""
    return nn.Sequential(
        OrderedDict(
            embedding=nn.EmbeddingBag(num_tokens, WIDTH, mode="mean", padding_idx=padding),
            fc1=nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()),
            head=nn.Linear(WIDTH, num_classes),
        )
    )
