"""A client whose model is split, and an edge that wants its images: by decoding, by hijacking, by blocks of its own.

The hijacking is that of Pasquini et al. (Unleashing the Tiger, CCS 2021, arXiv:2012.02670): the edge trains an encoder
and a decoder on images of its own, and sends gradients that move the client's blocks towards the encoder. Here the
encoder begins as the client's blocks, which the edge knows, and what tells the two apart looks at the labels too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, one_hot

from espalier.app.config.parse import parse_config
from espalier.app.tasks.node import ClientNode
from espalier.app.wiring.clients import ClientTasks
from espalier.clients.messages.frames import Format, as_received
from espalier.clients.messages.labels import LabelTerms
from espalier.clients.messages.split import SplitBegin
from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.cut import as_blocks, copied, part_of
from espalier.clients.shared.generators import seeded_torch
from espalier.clients.split.session import Session
from espalier.clients.task import ClientTask
from experiments.attacking.likeness import likeness
from experiments.attacking.noisy import with_noise
from experiments.attacking.records import Measured, Pictures
from experiments.attacking.updates import pixels
from experiments.privacy import NUM_CLASSES, tried_labels

DECODED, HIJACKED, SENT = "decoded", "hijacked", "blocks sent"
RUN = {
    "engine": "in-process",
    "algorithm": "hsfl",
    "num-clients": 2,
    "partition": "iid",
    "batch-size": 64,
    "local-epochs": 1,
    "optimizer": "adam",
    "learning-rate": 0.005,
}
ROUNDS = 10
SHOWN = (1, 5, 10)  # rounds that have rows
WIDTH = 128  # of decoder and critic
TAIL = 3  # blocks from this one on are the client's, where it has a tail
Answer = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """An attack.

    Parameters
    ----------
    attack : str
        What the edge does: it trains honestly and decodes, hijacks, or sends blocks of its own.
    cut : int
        Blocks at the client.
    defence : str (default: "none")
        As tables have it.
    payload : str (default: "float32")
        ``stream.payload``.
    noise : float (default: 0)
        At clipped activations.
    has_tail : bool (default: False)
        The head is the client's.
    """

    attack: str
    cut: int
    defence: str = "none"
    payload: str = "float32"
    noise: float = 0.0
    has_tail: bool = False


CASES = (
    *(Case(attack, cut) for cut in (1, 2) for attack in (DECODED, HIJACKED, SENT)),
    *(Case(HIJACKED, 1, f"`stream.payload={payload}`", payload=payload) for payload in ("int8", "top-10%")),
    Case(HIJACKED, 1, "`tail-layer=head`", has_tail=True),
    *(Case(HIJACKED, 1, f"noise {noise:g}", noise=noise) for noise in (0.1, 1.0)),
)


def victim_and_own(seed: int) -> tuple[ClientTask, ClientTask]:
    """Return a client's task, and one with images of the same kind that the edge has itself."""
    tasks = ClientTasks(parse_config({**RUN, "seed": seed}))
    victim, own = (replace(task, model=copied(task.model)) for task in (tasks.of(ClientNode(i)) for i in (0, 1)))
    return victim, own


class Attacker:
    """An edge's encoder, decoder and critic, and the images that it has.

    Parameters
    ----------
    own : ClientTask
        Has the images.
    front : nn.Sequential
        The client's blocks as the edge knows them, with what happens to their values; they are copied.
    form : Format
        How values travel.
    """

    def __init__(self, own: ClientTask, front: nn.Sequential, form: Format) -> None:
        self.own, self.form = own, form
        self.images = pixels(own)
        self.encoder = copied(front).train()
        width = self.encoder(own.prepare(own.train.inputs[:2])).flatten(1).shape[1]
        side = self.images[0].numel()
        self.decoder = nn.Sequential(nn.Flatten(), nn.Linear(width, WIDTH), nn.ReLU(), nn.Linear(WIDTH, side))
        self.critic = nn.Sequential(
            nn.Linear(width + NUM_CLASSES, WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, 64), nn.LeakyReLU(0.2)
        ).append(nn.Linear(64, 1))
        weights = [*self.encoder.parameters(), *self.decoder.parameters()]
        self._coding = torch.optim.Adam(weights, lr=2e-3)
        self._decoding = torch.optim.Adam(self.decoder.parameters(), lr=2e-3)
        self._judging = torch.optim.Adam(self.critic.parameters(), lr=2e-3, betas=(0.5, 0.9))

    def decoded(self, values: Tensor) -> Tensor:
        """Return images from 0 to 1 of what travelled."""
        images: Tensor = self.decoder(values).view(-1, *self.images.shape[1:])
        return images

    def travelled(self, values: Tensor) -> Tensor:
        """Return values as they arrive, with the gradient of what was sent."""
        return values + (as_received(self.form, values.detach()) - values.detach())

    def learn_coding(self, *, by_decoder_alone: bool = False) -> tuple[Tensor, Tensor]:
        """Make a step towards images that come out as they went in; return values of own images, and their labels."""
        drawn = torch.randint(len(self.images), (64,))
        values = self.travelled(self.encoder(self.own.prepare(self.own.train.inputs[drawn])))
        optimizer = self._decoding if by_decoder_alone else self._coding
        optimizer.zero_grad()
        mse_loss(self.decoded(values), self.images[drawn]).backward()
        optimizer.step()
        return values.detach(), self.own.train.labels[drawn]

    def judged(self, values: Tensor, labels: Tensor) -> Tensor:
        """Return what the critic says of values: above 0 where it takes them for the encoder's."""
        verdict: Tensor = self.critic(torch.cat([values.flatten(1), one_hot(labels.long(), NUM_CLASSES)], dim=1))
        return verdict

    def hijack(self, values: Tensor, labels: Tensor) -> Tensor:
        """Learn from a mini-batch, and return the gradient that makes its values more like the encoder's."""
        encoded, own_labels = self.learn_coding()
        inputs = values.clone().requires_grad_(True)
        verdict = self.judged(inputs, labels)
        (gradient,) = torch.autograd.grad(binary_cross_entropy_with_logits(verdict, torch.ones_like(verdict)), inputs)
        self._learn_judging(values, labels, encoded, own_labels)
        return gradient

    def _learn_judging(self, values: Tensor, labels: Tensor, encoded: Tensor, own_labels: Tensor) -> None:
        true, false = self.judged(encoded, own_labels), self.judged(values, labels)
        loss = binary_cross_entropy_with_logits(true, torch.ones_like(true))
        loss = loss + binary_cross_entropy_with_logits(false, torch.zeros_like(false))
        share = torch.rand(len(values), *[1] * (values.ndim - 1))
        mixed = (share * values + (1 - share) * encoded[: len(values)]).requires_grad_(True)
        (slope,) = torch.autograd.grad(self.judged(mixed, labels).sum(), mixed, create_graph=True)
        self._judging.zero_grad()
        (loss + slope.flatten(1).square().sum(1).mean()).backward()  # a critic that is too steep teaches nothing
        self._judging.step()


class HonestEdge:
    """The server's blocks, which are trained as they are meant to be.

    Parameters
    ----------
    blocks : nn.Sequential
        The blocks, which are copied.
    """

    def __init__(self, blocks: nn.Sequential) -> None:
        self.blocks = copied(blocks).train()
        self._optimizer = torch.optim.Adam(self.blocks.parameters(), lr=0.005)

    def __call__(self, values: Tensor, labels: Tensor) -> Tensor:
        """Make a step; return the cut gradient."""
        inputs = values.clone().requires_grad_(True)
        self._optimizer.zero_grad()
        cross_entropy(self.blocks(inputs), labels.long()).backward()
        self._optimizer.step()
        assert inputs.grad is not None
        return inputs.grad


@dataclass(frozen=True)
class Round:
    """What travelled in a client's round, and what it was made of.

    Parameters
    ----------
    values : Tensor
        Shape (N, ...): the activations as they arrived.
    images : Tensor
        Shape (N, C, H, W), from 0 to 1.
    block : ArrayRecord
        The client's blocks after it.
    """

    values: Tensor
    images: Tensor
    block: ArrayRecord


def train_round(task: ClientTask, begin: SplitBegin, form: Format, answer: Answer) -> Round:
    """Let a client train for a round, by its own session; `answer` makes cut gradients of activations and labels."""
    session = Session.begin(task, begin)
    arrived = []
    while not session.is_over:
        sent = session.forward()
        values = as_received(form, sent.values.detach())
        labels = torch.as_tensor(sent.numbers) if session.tail is None else _labels_behind_tail(session, begin, values)
        arrived.append(values)
        session.backward(as_received(form, answer(values, labels)))
    images = pixels(task, torch.cat(session.batches))
    return Round(torch.cat(arrived), images, session.result().block)


def _labels_behind_tail(session: Session, begin: SplitBegin, values: Tensor) -> Tensor:
    """Return the labels that an edge finds which tries all of them on the tail that it sent."""
    assert begin.tail is not None
    model, weights = as_blocks(session.task.model), to_weights(begin.block)
    middle, tail = part_of(model, begin.cut, begin.tail), copied(part_of(model, begin.tail, len(model)))
    tail.load_state_dict({name: weights[name] for name in tail.state_dict()})
    with torch.no_grad():
        features = middle(values)
    return tried_labels(tail, features, session.at_tail(features), NUM_CLASSES)


def attacked(
    case: Case, victim: ClientTask, own: ClientTask, rounds: int = ROUNDS
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Attack a client; return after each round its number, the images that were trained on, and what was rebuilt.

    An edge that trains honestly, or sends blocks of its own, looks once: in the last round, or in the first.
    """
    task = with_noise(victim, case.cut, case.noise)
    form, model = Format(case.payload), as_blocks(task.model)
    front, tail = part_of(model, 0, case.cut), TAIL if case.has_tail else None
    kept = part_of(model, TAIL, len(model)).state_dict() if case.has_tail else {}
    block, labels = to_record({**front.state_dict(), **kept}), LabelTerms("kept" if case.has_tail else "labels")
    attacker = Attacker(own, front, form)

    def begin(number: int) -> SplitBegin:
        return SplitBegin(block, number, case.cut, labels, tail=tail)

    steps = rounds * len(Session.begin(task, begin(1)).batches)
    if case.attack == SENT:
        for _ in range(steps):
            attacker.learn_coding()
        block = to_record(attacker.encoder.state_dict())
        done = train_round(task, begin(1), form, lambda values, labels: torch.zeros_like(values))
        yield 1, done.images, _clear(attacker, done)
        return
    honest = HonestEdge(part_of(model, case.cut, len(model)))
    for number in range(1, rounds + 1):
        if case.attack == DECODED and number == rounds:
            attacker.encoder.load_state_dict(to_weights(block))  # the edge has sent them
            for _ in range(steps):
                attacker.learn_coding(by_decoder_alone=True)
        done = train_round(task, begin(number), form, honest if case.attack == DECODED else attacker.hijack)
        block = done.block
        if case.attack == HIJACKED or number == rounds:
            yield number, done.images, _clear(attacker, done)


def _clear(attacker: Attacker, done: Round) -> Tensor:
    with torch.no_grad():
        return attacker.decoded(done.values).clamp(0, 1)


def measured(seed: int, cases: tuple[Case, ...] = CASES, rounds: int = ROUNDS) -> Iterator[Measured | Pictures]:
    """Return what is rebuilt in each case, and what the mean of the edge's own images is like."""
    victim, own = victim_and_own(seed)
    mean = pixels(own).mean(0, keepdim=True)
    for case in cases:
        with seeded_torch(seed, torch.device("cpu")):
            found = [one for one in attacked(case, victim, own, rounds) if one[0] in SHOWN]
        for number, images, rebuilt in found:
            where = (case.attack, f"cut {case.cut}, round {number}", case.defence)
            beside = likeness(mean.expand_as(images), images)
            for measure, value in likeness(rebuilt, images).items():
                yield Measured(*where, measure, value, beside[measure], len(images))
        yield Pictures(*where, images, rebuilt)
