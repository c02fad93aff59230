"""What holds of every task of a user's own, tried with a few clients, in this process."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from espalier.app.ground.errors import UserError
from espalier.app.ground.object_spec import ObjectSpec
from espalier.app.settings.sections import Data
from espalier.app.tasks.adapted import AdaptedTask
from espalier.app.tasks.fitting import are_classes_of_places
from espalier.app.tasks.own import OwnTask
from espalier.clients.shared.cut import Cut
from espalier.clients.shared.generators import seeded_torch
from espalier.clients.shared.nested import tensors_of
from espalier.clients.task import Examples, LocalTraining
from espalier.strategies.laws import Broken, Law, broken_laws
from espalier.strategies.randomness import seeded_globals
from espalier.strategies.split.cuts import legal_cuts

CPU = torch.device("cpu")
NUM_CLIENTS = 4
TRAINING = LocalTraining(learning_rate=0.01, local_epochs=1, batches_per_epoch=2, batch_size=32)

NewTask = Callable[[str], AdaptedTask]


@dataclass(frozen=True)
class GivenSpec(ObjectSpec):
    """A class that is here, and need not be imported."""

    given: Any = None

    def load(self) -> Any:
        """Return the class."""
        return self.given


def check_task(task: type[OwnTask], parameters: Mapping[str, Any] | None = None) -> list[Broken]:
    """Return the laws that a task of one's own breaks; nothing where it fits.

    Parameters
    ----------
    task : type[OwnTask]
        Its class.
    parameters : Mapping[str, Any], optional (default: None)
        What it is made with.

    Returns
    -------
    list[Broken]
        One for each law that does not hold. Where there are no data, or no model, it is that alone.
    """
    given = tuple((parameters or {}).items())
    spec = GivenSpec("task", getattr(task, "__name__", repr(task)), "", "", given, task)

    shares_out = getattr(task, "pool", OwnTask.pool) is not OwnTask.pool
    settings = {"partition": "iid"} if shares_out else {}  # which labels of every kind allow
    section = Data.model_validate(settings).model_copy(update={"task": spec})

    def new_task(splits_for: str = "") -> AdaptedTask:
        return AdaptedTask(section, TRAINING, NUM_CLIENTS, 0, CPU, num_edges=1, has_pool=True, splits_for=splits_for)

    for basic in BASIC:
        if broken := _readable(broken_laws([basic], new_task)):
            return broken
    return _readable(broken_laws(LAWS, new_task))


def _readable(broken: list[Broken]) -> list[Broken]:
    """Return breaches that name no run config, which there is none of."""
    return [Broken(one.law, one.seen.partition(": allowed is ")[2] or one.seen, one.advice) for one in broken]


def _tried(do: Callable[[AdaptedTask], object]) -> Callable[[NewTask], str]:
    """Return what is seen where a part of the task does not do: what the app would say of it."""

    def seen(new_task: NewTask) -> str:
        try:
            do(new_task(""))
        except UserError as error:
            return str(error)
        return ""

    return seen


def _examples(task: AdaptedTask) -> list[Examples]:
    return [examples for client in range(NUM_CLIENTS) for examples in task.client_examples(client)]


def _other_data(new_task: NewTask) -> str:
    made = []
    for seed in (1, 2):
        with seeded_globals(seed), seeded_torch(seed, CPU):
            made.append(list(map(_bits, _examples(new_task("")))))
    for place, (one, other) in enumerate(zip(*made, strict=True)):
        if one != other:
            return f"client_data({place // 2}, {NUM_CLIENTS}, 0) of two objects gave different data"
    return ""


def _other_numbers(new_task: NewTask) -> str:
    task = new_task("")
    for client in range(NUM_CLIENTS):
        told, held = task.num_examples(client), tuple(map(len, task.client_examples(client)))
        if told is not None and told != held:
            return f"num_examples({client}, {NUM_CLIENTS}, 0) says {told}, and client_data() gave {held}"
    return ""


def _other_weights(new_task: NewTask) -> str:
    states = []
    for seed in (1, 2):
        with seeded_globals(seed):
            states.append(new_task("").new_model().state_dict())
    if states[0].keys() != states[1].keys():
        return "two models of one seed have weights of different names"
    changed = [name for name, tensor in states[0].items() if _bytes(tensor) != _bytes(states[1][name])]
    return f"two models of one seed differ in {changed[0]!r}" if changed else ""


def _spoilt_data(new_task: NewTask) -> str:
    task = new_task("")
    held = [*_examples(task), task.pool]
    before = list(map(_bits, held))
    with suppress(UserError):  # which is another law's to say
        task.check_data()
    return "a step and an evaluation changed them" if list(map(_bits, held)) != before else ""


def _fails_split(new_task: NewTask) -> str:
    model = new_task("").new_model()
    names = [name for name, _ in model.named_children()]
    can_learn = names[-1:] == ["head"] and are_classes_of_places(new_task("").pool.labels)
    if not (isinstance(model, nn.Sequential) and can_learn):
        return ""  # it is not meant to be split
    try:
        task = new_task("split training")
        task.check_data()
        task.try_cuts([Cut.of(model, blocks) for blocks in legal_cuts(model)], None)
    except UserError as error:
        return str(error)
    return ""


BASIC: tuple[Law[NewTask], ...] = (
    Law("it can be made", _tried(lambda task: None), "see espalier.app.tasks.OwnTask"),
    Law("every client has examples, of one form", _tried(_examples), "return Examples(inputs, labels) for both"),
    Law("there is a test pool", _tried(lambda task: task.pool), "give every client rows of one shape"),
    Law("there is a model", _tried(lambda task: task.new_model()), "return an nn.Module from model()"),
)
LAWS: tuple[Law[NewTask], ...] = (
    Law("the same arguments give the same data", _other_data, "draw by seed and client alone, and keep no generator"),
    Law("num_examples() is what clients have", _other_numbers, "return the lengths of what client_data() returns"),
    Law("the model's weights follow the seed", _other_weights, "draw them from PyTorch's generator alone"),
    Law(
        "a model learns from the data",
        _tried(lambda task: task.check_data()),
        "docs/own-task.md says what each method returns",
    ),
    Law("data stay as they are", _spoilt_data, "change no tensor in place in prepare(), loss(), metrics() or a layer"),
    Law("a model with a head can be split", _fails_split, "or call the last block something else than head"),
)


def _bits(examples: Examples) -> list[tuple[str, bytes]]:
    tensors = (*tensors_of(examples.inputs), examples.labels)
    return [(f"{tensor.dtype} {tuple(tensor.shape)}", _bytes(tensor)) for tensor in tensors]


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
