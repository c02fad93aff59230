"""Texts that are made here: what is a message about? The model can be split behind its embedding."""

from collections import OrderedDict
from random import Random

import torch
from torch import Tensor, nn

from espalier.app.tasks import Examples, OwnTask

TOPICS = {
    "weather": ["rain", "sun", "cloud", "wind", "storm", "snow", "warm", "cold", "sky", "forecast"],
    "food": ["bread", "soup", "apple", "cheese", "salt", "sweet", "cook", "oven", "plate", "dinner"],
    "travel": ["train", "ticket", "hotel", "road", "map", "flight", "luggage", "border", "city", "delay"],
    "sport": ["match", "goal", "team", "coach", "run", "score", "ball", "win", "season", "stadium"],
}
COMMON = ["the", "a", "is", "was", "and", "with", "in", "on", "today", "we", "they", "very", "again", "not", "many"]
WORDS = ["", *COMMON, *(word for words in TOPICS.values() for word in words)]  # 0 fills up short texts
LENGTH = 12


class Topics(OwnTask):
    """Messages of 6 to 12 words, of which few tell the topic; every client writes most about one.

    Parameters
    ----------
    size : int (default: 16)
        Values that a word becomes.
    messages : int (default: 100)
        Messages of each client.
    """

    def __init__(self, size: int = 16, messages: int = 100) -> None:
        self.size = size
        self.messages = messages

    def model(self) -> nn.Module:
        """Return the blocks: word vectors, their mean over the text, a layer and the head."""
        return nn.Sequential(
            OrderedDict(
                embedding=MeanOfWords(len(WORDS), self.size),
                hidden=nn.Sequential(nn.Linear(self.size, 32), nn.ReLU()),
                head=nn.Linear(32, len(TOPICS)),
            )
        )

    def client_data(self, client: int, num_clients: int, seed: int) -> tuple[Examples, Examples]:
        """Return a client's messages: the ids of their words with a mask, and their topics."""
        rng = Random(f"{seed}/{client}")
        parts = []
        for count in (self.messages, self.messages // 2):
            labels = [client % len(TOPICS) if rng.random() < 0.5 else rng.randrange(len(TOPICS)) for _ in range(count)]
            ids = torch.tensor([message(rng, label) for label in labels])
            parts.append(Examples({"ids": ids, "mask": ids > 0}, torch.tensor(labels)))
        return parts[0], parts[1]


class MeanOfWords(nn.Module):
    """The mean of the vectors of a text's words.

    Parameters
    ----------
    words, size : int
        Words that there are, and values of each.
    """

    def __init__(self, words: int, size: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(words, size)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return a vector for each text."""
        mask = inputs["mask"].unsqueeze(2)
        return (self.vectors(inputs["ids"]) * mask).sum(1) / mask.sum(1)


def message(rng: Random, label: int) -> list[int]:
    """Return the ids of a message's words, filled up to the same length."""
    topic, words = list(TOPICS.values())[label], []
    for _ in range(rng.randint(6, LENGTH)):
        chance = rng.random()
        words.append(rng.choice(topic if chance < 0.3 else COMMON if chance < 0.9 else WORDS[1:]))
    return [WORDS.index(word) for word in words] + [0] * (LENGTH - len(words))
