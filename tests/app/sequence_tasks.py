"""Tasks of sequences, whose places have a label each, for tests."""

from collections import OrderedDict

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from espalier.app.tasks import Examples, OwnTask, token_loss

WORDS, PLACES, KINDS = 9, 6, 4


class Tagger(OwnTask):
    """What kind of word stands at each place; `passes` says what the blocks pass on: "rows", "time", "lengths", "both".

    Inputs are words and the number of those that count; the others have the label -100.
    """

    def __init__(self, passes: str = "rows", frozen: bool = False, draws: bool = False) -> None:
        self.passes = passes
        self.frozen = frozen
        self.draws = draws

    def model(self):
        time, lengths = self.passes in ("time", "both"), self.passes in ("lengths", "both")
        blocks = OrderedDict(
            words=Words(time, lengths),
            past=Recurrent(3, time, lengths),
            again=Recurrent(5, time, lengths),
            rest=Rest(time, lengths, self.draws),
            head=nn.Linear(5, KINDS),
        )
        model = nn.Sequential(blocks).double()
        model.head.requires_grad_(not self.frozen)
        return model

    def client_data(self, client, num_clients, seed):
        draw = torch.Generator().manual_seed(100 * seed + client)
        count = 14 + 4 * client
        words = torch.randint(WORDS, (count, PLACES), generator=draw)
        lengths = torch.randint(1, PLACES + 1, (count,), generator=draw)
        labels = (words + words.roll(1, 1)) % KINDS
        labels[torch.arange(PLACES) >= lengths[:, None]] = -100
        labels[words == 0] = -100  # a word of no kind
        return tuple(Examples((words[part], lengths[part]), labels[part]) for part in (slice(0, -6), slice(-6, None)))

    def loss(self, outputs, labels):
        return token_loss(outputs, labels)

    def metrics(self, outputs, labels):
        return {"perplexity": float(token_loss(outputs, labels).exp())}


class Words(nn.Module):
    def __init__(self, time, lengths):
        super().__init__()
        self.vectors = nn.Embedding(WORDS, 3)
        self.time, self.lengths = time, lengths

    def forward(self, inputs):
        words, lengths = inputs
        values = self.vectors(words.T if self.time else words)
        return (values, lengths) if self.lengths else values


class Recurrent(nn.Module):
    def __init__(self, size, time, lengths):
        super().__init__()
        self.layer = nn.GRU(size, 5, batch_first=not time)
        self.time, self.lengths = time, lengths

    def forward(self, given):
        if not self.lengths:
            return self.layer(given)[0]
        values, lengths = given
        axes = {"batch_first": not self.time}
        packed = pack_padded_sequence(values, lengths.cpu(), enforce_sorted=False, **axes)
        return pad_packed_sequence(self.layer(packed)[0], total_length=PLACES, **axes)[0], lengths


class Rest(nn.Module):
    """Gives a row for each text."""

    def __init__(self, time, lengths, draws):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5 * draws), nn.Tanh())
        self.time, self.lengths = time, lengths

    def forward(self, given):
        values = self.layer(given[0] if self.lengths else given)
        return values.transpose(0, 1) if self.time else values


class Cornered(Tagger):
    """Clients have so many rows of the head, for which there may be too many."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def corner(self, client, name, shape):
        return (self.rows, *shape[1:]) if name.startswith("head") else shape


class Turned(OwnTask):
    """Layers that compute side by side, with time first behind the client's block."""

    def model(self):
        blocks = OrderedDict(
            turned=nn.Sequential(nn.Linear(12, 12), TimeFirst()),
            back=nn.Sequential(nn.Tanh(), Turn()),
            head=nn.Linear(4, 2),
        )
        return nn.Sequential(blocks)

    def client_data(self, client, num_clients, seed):
        values = torch.randn(20, 12, generator=torch.Generator().manual_seed(client))
        labels = (values.view(20, 3, 4).sum(2) > 0).long()
        return Examples(values[:12], labels[:12]), Examples(values[12:], labels[12:])

    def loss(self, outputs, labels):
        return token_loss(outputs, labels)


class TimeFirst(nn.Module):
    def forward(self, values):
        return values.unflatten(1, (3, 4)).transpose(0, 1)


class Turn(nn.Module):
    def forward(self, values):
        return values.transpose(0, 1)
