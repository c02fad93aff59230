"""A GPT-2 decoder that learns to go on with a text, by adapters alone; the text comes with scikit-learn."""

from functools import cached_property
from importlib.resources import files
from math import log

# First, since peft imports torchvision, which alone fails beside a PyTorch that it was not built for.
import espalier.app.tasks.torchvision_compat  # noqa: F401

# isort: split
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2Model

from espalier.app.tasks import Examples, OwnTask, blocks_of, without_frozen

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))  # all others become line ends
LENGTH = 16


class NextCharacter(OwnTask):
    """Which character comes next? Every client has the descriptions of some data sets of scikit-learn's.

    Parameters
    ----------
    layers, size : int (default: 3, 32)
        Of the decoder: GPT-2's `n_layer` and `n_embd`.
    rank : int (default: 8)
        Of the adapters.
    passages : int (default: 400)
        Passages of each client to train on; half as many to test on.
    """

    def __init__(self, layers: int = 3, size: int = 32, rank: int = 8, passages: int = 400) -> None:
        self.layers = layers
        self.size = size
        self.rank = rank
        self.passages = passages

    def model(self) -> nn.Sequential:
        """Return the blocks: the first layer with the embeddings, each other layer, and the head; adapters train."""
        decoder = Decoder(self.layers, self.size)
        # Twice, since GPT-2's layers keep their weights transposed and its head does not. The whole decoder comes
        # first, which freezes all of it: where there are adapters already, peft freezes nothing more.
        inject_adapter_in_model(self.adapters(["head"]), decoder)
        inject_adapter_in_model(self.adapters(["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True), decoder.transformer)
        at = [*(f"transformer.h.{i}" for i in range(1, self.layers)), "head"]
        example = torch.zeros(2, LENGTH, dtype=torch.int64)
        return without_frozen(blocks_of(decoder, at, example))

    def adapters(self, layers: list[str], **options: bool) -> LoraConfig:
        """Return what peft puts beside the layers of these names."""
        return LoraConfig(r=self.rank, lora_alpha=2 * self.rank, target_modules=layers, **options)

    @cached_property
    def text(self) -> Tensor:
        """The descriptions of all data sets, one after the other, as numbers of characters."""
        folder = sorted(files("sklearn.datasets.descr").iterdir(), key=lambda file: file.name)
        text = "".join(file.read_text(encoding="utf-8") for file in folder if file.name.endswith(".rst"))
        return torch.tensor([max(CHARACTERS.find(character), 0) for character in text.replace("\t", " ")])

    def client_data(self, client: int, num_clients: int, seed: int) -> tuple[Examples, Examples]:
        """Return passages of a client's part of the text, each with the character behind it; the last are for tests."""
        mine = self.text.tensor_split(num_clients)[client]
        generator = torch.Generator().manual_seed(1000 * seed + client)
        end = len(mine) * 4 // 5
        return (
            passages(mine[:end], self.passages, generator),
            passages(mine[end:], self.passages // 2, generator),
        )

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Return how many bits a character takes if the model's guess is used to write it."""
        return {"bits_per_character": cross_entropy(outputs, labels).item() / log(2)}


class Decoder(nn.Module):
    """GPT-2's architecture with random weights, and a head for the character behind the text.

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
        self.last = LastPosition()
        self.head = nn.Linear(size, len(CHARACTERS), bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return a number for each character, for texts (N, T)."""
        return self.head(self.last(self.transformer(ids).last_hidden_state))


class LastPosition(nn.Module):
    """What the decoder makes of the last character."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the last position of (N, T, size)."""
        return hidden[:, -1]


def passages(text: Tensor, count: int, generator: torch.Generator) -> Examples:
    """Return passages at random places of a text, each with the character that follows."""
    starts = torch.randint(len(text) - LENGTH, (count,), generator=generator)
    windows = text.unfold(0, LENGTH + 1, 1)[starts]
    return Examples(windows[:, :-1].contiguous(), windows[:, -1].contiguous())
