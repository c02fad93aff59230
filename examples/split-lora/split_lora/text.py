"""A GPT-2 decoder that learns to go on with a text, by adapters alone; the text comes with scikit-learn."""

from collections.abc import Mapping
from functools import cached_property
from importlib.resources import files

# First, since transformers imports torchvision, which alone fails beside a PyTorch that it was not built for.
import espalier.app.tasks.torchvision_compat  # noqa: F401

# isort: split
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2Model

from espalier.app.tasks import Examples, OwnTask, blocks_of, token_loss, without_frozen
from split_lora.adapters import add_adapters, of_rank

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))  # all others become line ends
LENGTH = 32
UNSEEN = 4  # so many characters of a passage are read before a guess counts


class NextCharacter(OwnTask):
    """Which character comes next? Every client has the descriptions of some data sets of scikit-learn's.

    Parameters
    ----------
    layers, size : int (default: 3, 32)
        Of the decoder: GPT-2's `n_layer` and `n_embd`.
    ranks : tuple[int, ...] (default: 8)
        Of the adapters of clients 0, 1, ..., in turn. The edges' adapters have the largest.
    passages : int (default: 200)
        Passages of each client to train on; half as many to test on.
    """

    def __init__(self, layers: int = 3, size: int = 32, ranks: tuple[int, ...] = (8,), passages: int = 200) -> None:
        self.layers = layers
        self.size = size
        self.ranks = ranks
        self.passages = passages

    def model(self) -> nn.Sequential:
        """Return the blocks: the first layer with the embeddings, each other layer, and the head; adapters train."""
        decoder = Decoder(self.layers, self.size)
        add_adapters(decoder, ("c_attn", "c_proj", "c_fc", "head"), max(self.ranks))
        at = [*(f"transformer.h.{i}" for i in range(1, self.layers)), "head"]
        example = torch.zeros(2, LENGTH, dtype=torch.int64)
        return without_frozen(blocks_of(decoder, at, example))

    def corner(self, client: int, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return what a client has of an adapter of the largest rank: as much as its own rank says."""
        return of_rank(name, shape, self.ranks[client % len(self.ranks)])

    @cached_property
    def text(self) -> Tensor:
        """The descriptions of all data sets, one after the other, as numbers of characters."""
        folder = sorted(files("sklearn.datasets.descr").iterdir(), key=lambda file: file.name)
        text = "".join(file.read_text(encoding="utf-8") for file in folder if file.name.endswith(".rst"))
        return torch.tensor([max(CHARACTERS.find(character), 0) for character in text.replace("\t", " ")])

    def client_data(self, client: int, num_clients: int, seed: int) -> tuple[Examples, Examples]:
        """Return passages of a client's part of the text, each place with the character behind it; tests come last."""
        mine = self.text.tensor_split(num_clients)[client]
        generator = torch.Generator().manual_seed(1000 * seed + client)
        end = len(mine) * 4 // 5
        return (
            passages(mine[:end], self.passages, generator),
            passages(mine[end:], self.passages // 2, generator),
        )

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over all places of all passages that count."""
        return token_loss(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> Mapping[str, float]:
        """Return among how many characters the model is as good as a guess."""
        return {"perplexity": float(token_loss(outputs, labels).exp())}


class Decoder(nn.Module):
    """GPT-2's architecture with random weights, and a head for the character behind each place.

    Parameters
    ----------
    layers, size : int
        As for `NextCharacter`.
    """

    def __init__(self, layers: int, size: int) -> None:
        super().__init__()
        config = GPT2Config(
            vocab_size=len(CHARACTERS),
            n_positions=LENGTH,
            n_embd=size,
            n_layer=layers,
            n_head=4,
            initializer_range=size**-0.5,  # a narrow decoder's; GPT-2's 0.02 would leave all to the adapters
            bos_token_id=None,
            eos_token_id=None,
            use_cache=False,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
        self.transformer = GPT2Model(config)
        self.head = nn.Linear(size, len(CHARACTERS), bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return a number for each character at each place, (N, T, characters), for texts (N, T)."""
        return self.head(self.transformer(ids).last_hidden_state)


def passages(text: Tensor, count: int, generator: torch.Generator) -> Examples:
    """Return passages at random places of a text; labels are the characters behind each of theirs, where they count."""
    starts = torch.randint(len(text) - LENGTH, (count,), generator=generator)
    windows = text.unfold(0, LENGTH + 1, 1)[starts]
    labels = windows[:, 1:].clone()
    labels[:, : UNSEEN - 1] = -100  # by so little nobody can tell
    return Examples(windows[:, :-1].contiguous(), labels)
