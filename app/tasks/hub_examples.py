"""Texts and tables of a set of Hugging Face's ``datasets``, as examples of tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from espalier.app.ground.errors import FAULTS, bad_value
from espalier.app.ground.object_spec import error_line
from espalier.app.ground.registered import load_built_in
from espalier.app.settings.values import path_of
from espalier.app.tasks.dataset import Told
from espalier.app.tasks.hub import INPUTS_KEY, TEXT, TOKENIZER_KEY, HubSet

if TYPE_CHECKING:
    from datasets import Dataset

PADDINGS = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>")
MOST_WORDS = 1000  # different texts of a table's column


@dataclass(frozen=True)
class Rows:
    """The inputs of two pools, and what a model has to know of them.

    Attributes
    ----------
    train, test : Tensor
        Of texts ``int64`` tokens, shape ``(N, length)``; of a table ``float32``, shape ``(N, numbers)``.
    offered : dict[str, Any]
        What a model's function is offered beside ``num_classes``: ``input_shape``, and of texts ``num_tokens`` and
        ``padding``, the token that fills up.
    about : dict[str, Any]
        What to know to use the model elsewhere.
    """

    train: Tensor
    test: Tensor
    offered: dict[str, Any]
    about: dict[str, Any]


def rows_of(opened: HubSet, told: Told) -> Rows:
    """Return the inputs of a set of texts, or of a table.

    Raises
    ------
    UserError
        If there is no such tokenizer, or a column has gaps or is not of the kind.
    """
    return _texts(opened, told) if opened.kind == TEXT else _table(opened)


def _texts(opened: HubSet, told: Told) -> Rows:
    """Return texts as tokens, cut and filled up to one length: the longest training text's, `max_tokens` at most."""
    tokenizer = _tokenizer(told.tokenizer)
    num_tokens = 1 + max(tokenizer.get_vocab().values())  # numbers may be left out
    padding = next(
        (number for token in PADDINGS if (number := tokenizer.token_to_id(token)) is not None),
        (tokenizer.padding or {}).get("pad_id", num_tokens),  # none that stands for a word
    )
    tokenizer.no_padding()
    tokenizer.enable_truncation(told.max_tokens)
    (column,) = opened.inputs
    pools = []
    for pool in (opened.train, opened.test):
        texts = list(pool[column][:])
        if None in texts:
            raise bad_value(INPUTS_KEY, column, f"a column without gaps: row {texts.index(None)} has none")
        pools.append([encoding.ids for encoding in tokenizer.encode_batch_fast(texts)])
    length = max(1, max(map(len, pools[0])))
    train, test = (torch.from_numpy(_filled_up(pool, length, padding)) for pool in pools)
    offered = {"input_shape": (length,), "num_tokens": max(num_tokens, padding + 1), "padding": padding}
    return Rows(train, test, offered, {"inputs": list(opened.inputs), "tokenizer": told.tokenizer, "padding": padding})


def _filled_up(pool: Sequence[Sequence[int]], length: int, padding: int) -> np.ndarray:
    rows = np.full((len(pool), length), padding, dtype=np.int64)
    for row, tokens in zip(rows, pool, strict=True):
        row[: len(tokens)] = tokens[:length]
    return rows


def _tokenizer(name: str) -> Any:
    """Return the tokenizer of a ``tokenizer.json``, of a folder that has one, or of a name on the hub."""
    kind = load_built_in("tokenizers:Tokenizer", TOKENIZER_KEY, name, "tokenizers", "'espalier-fl[datasets]'")
    path = path_of(TOKENIZER_KEY, name)
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        return kind.from_file(str(path)) if path.is_file() else kind.from_pretrained(name)
    except FAULTS as error:  # a file that is none, no network, no such name
        allowed = "a tokenizer.json, a folder with one, or a model's name on the Hugging Face hub"
        raise bad_value(TOKENIZER_KEY, name, f"{allowed} ({error_line(error)})") from None


def _table(opened: HubSet) -> Rows:
    """Return a table's columns as numbers of mean 0 and variance 1 over the training pool.

    A column of texts becomes one of numbers for each different text of the training pool: 1 where it is, else 0.
    """
    names, parts = [], []
    for column in opened.inputs:
        train, test = (_values(pool, column) for pool in (opened.train, opened.test))
        if train.dtype.kind in "US":
            words = np.unique(train)
            if len(words) > MOST_WORDS:
                allowed = f"columns of at most {MOST_WORDS} different texts, or data.tokenizer for texts"
                raise bad_value(INPUTS_KEY, column, f"{allowed}: these are {len(words)}")
            names += [f"{column}={word}" for word in words]
            parts.append([(values[:, None] == words).astype(np.float64) for values in (train, test)])
        else:
            names.append(column)
            parts.append([values.astype(np.float64)[:, None] for values in (train, test)])
    train, test = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = train.mean(axis=0), train.std(axis=0)
    if len(beyond := np.flatnonzero(~np.isfinite(std))):
        raise bad_value(INPUTS_KEY, names[beyond[0]], "columns whose variance is below 1e308")
    is_constant = train.min(axis=0) == train.max(axis=0)  # its deviation may be rounding, and not 0
    mean, std = np.where(is_constant, train[0], mean), np.where(is_constant, 1.0, std)
    inputs, tests = (torch.from_numpy(((pool - mean) / std).astype(np.float32)) for pool in (train, test))
    return Rows(
        inputs, tests, {"input_shape": (len(names),)}, {"inputs": names, "mean": mean.tolist(), "std": std.tolist()}
    )


def _values(pool: "Dataset", column: str) -> np.ndarray:
    """Return a column of numbers or texts; UserError where it has gaps."""
    values = list(pool[column][:])
    if None in values:
        raise bad_value(INPUTS_KEY, column, f"columns without gaps: row {values.index(None)} has none")
    array = np.array(values)
    if array.dtype.kind not in "US" and not np.isfinite(array.astype(np.float64)).all():
        row = int(np.flatnonzero(~np.isfinite(array.astype(np.float64)))[0])
        raise bad_value(INPUTS_KEY, column, f"columns of finite numbers: row {row} holds {array[row]}")
    return array
