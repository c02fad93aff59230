"""Whether a model of a user's own fits its data, its algorithm and its cuts: tried before the run."""

import math
from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from espalier.app.ground.errors import FAULTS
from espalier.app.ground.fields import COLUMNS, FIELDS
from espalier.app.ground.object_spec import error_line
from espalier.app.tasks.split_trial import check_blocks, try_cut
from espalier.app.tasks.task import Task
from espalier.app.tasks.trial import CPU, MisfitError, Tried, named, spread_over, try_out
from espalier.clients.messages.frames import Format
from espalier.clients.messages.labels import IGNORED
from espalier.clients.randomness import without_dropout
from espalier.clients.shared.cut import Cut, as_blocks
from espalier.clients.shared.generators import seeded_torch
from espalier.clients.shared.nested import rows_on
from espalier.clients.task import ClientTask, Examples
from espalier.strategies.split.shapes import cut_shapes


def check_fit(task: Task, tried: Tried, *, seed: int, splits_for: str, has_pool: bool) -> None:
    """Refuse a model that can't take the data, or be split where it has to be.

    Where there is a pool, a step of training and an evaluation show what else does not fit.

    Parameters
    ----------
    task : Task
        Has the model and the data.
    tried : Tried
        What of it is the user's own.
    seed : int
        The run's.
    splits_for : str
        The algorithm that splits the model; empty for one that does not.
    has_pool : bool
        The server's test pool is here.

    Raises
    ------
    MisfitError
        For the first thing that does not fit.
    """
    check_weights(task, tried)
    if splits_for:
        try:
            check_split(task)
        except MisfitError as error:
            raise MisfitError(f"{error}, for algorithm = {splits_for!r}") from None
    elif has_pool:
        check_model(task)
    if has_pool:
        with seeded_torch(seed, CPU):
            before = torch.default_generator.get_state()
            taken = FIELDS | COLUMNS
            # Dropout draws what each client's seed says: it is not what is looked for.
            try_out(
                tried,
                lambda: without_dropout(task.new_model()),
                task.test_examples(),
                task.training,
                task.objective.loss,
                taken,
            )
            draws = not torch.equal(before, torch.default_generator.get_state())
        if draws and task.side_by_side:
            raise MisfitError("one that draws nothing from PyTorch's generator, for its side_by_side = True")


def try_cuts(
    task: Task, tried: Tried, cuts: Collection[Cut], form: Format | None, *, seed: int, splits_for: str
) -> None:
    """Raise MisfitError unless a step through each cut can be made, with the gradients of the whole model."""
    blocks = as_blocks(task.new_model())
    if not (are_classes_of_places(task.test_examples().labels) or all(cut.has_tail(blocks) for cut in cuts)):
        wanted = "one whose labels are classes, integers of shape (N,) from 0, or (N, ...) with -100 where none counts,"
        raise MisfitError(f"{wanted} or with a tail-layer any that its loss takes, for algorithm = {splits_for!r}")
    for cut in cuts:
        try:
            try:
                _try_cut(task, tried, cut, form, seed, 2)
            except MisfitError:  # a loss, or BatchNorm, may need a whole mini-batch
                _try_cut(task, tried, cut, form, seed, task.training.batch_size)
        except MisfitError as error:
            raise MisfitError(f"{error}, for algorithm = {splits_for!r}") from None


def check_weights(task: Task, tried: Tried) -> None:
    """Raise MisfitError for weights that can't travel: NumPy has no type for them, or they are not finite."""
    model = task.new_model()
    with named("one whose model()'s state_dict() does not fail", tried):
        state = model.state_dict()
    for name, weights in state.items():
        if not isinstance(weights, Tensor):
            wanted = f"one whose model's state_dict() holds tensors, not a {type(weights).__name__} as {name}"
            raise MisfitError(f"{wanted}, which would not travel")
        try:
            torch.empty(0, dtype=weights.dtype).numpy()
        except TypeError:
            raise MisfitError(f"one whose weights NumPy has a type for, not {weights.dtype} as {name}") from None
        if weights.is_complex():
            wanted = f"one whose weights are real numbers, not {weights.dtype} as {name}: hold its two parts, which"
            raise MisfitError(f"{wanted} torch.view_as_complex puts together")
        if not (is_lazy(weights) or weights.isfinite().all()):
            wanted = f"one whose weights begin finite, not NaN or Inf as {name}: a buffer that is a constant, such"
            raise MisfitError(f"{wanted} as a mask, does not travel with persistent=False")


@torch.no_grad()
def check_model(task: Task) -> None:
    """Raise MisfitError unless the model takes an example."""
    model, example = task.new_model().eval(), task.example_input()
    try:
        model(example)
    except FAULTS as error:  # the model is foreign code
        raise MisfitError(f"one whose model takes its data ({error_line(error)})") from None


@torch.no_grad()
def check_outputs(model: nn.Module, example: Tensor, num_classes: int) -> None:
    """Raise MisfitError unless a model takes an image, and has an output for each class."""
    try:
        outputs = model.eval()(example)
    except FAULTS as error:  # the model is foreign code
        shape = tuple(example.shape[1:])
        raise MisfitError(f"one whose model takes images of shape {shape} ({error_line(error)})") from None
    wanted = f"one whose model has {num_classes} outputs for each image, a tensor of shape (N, {num_classes})"
    if not isinstance(outputs, Tensor):
        raise MisfitError(f"{wanted}, not a {type(outputs).__name__}")
    if outputs.shape != (1, num_classes):
        raise MisfitError(f"{wanted}, not {('N', *outputs.shape[1:])!r}".replace("'N'", "N"))


def check_split(task: Task) -> None:
    """Raise MisfitError unless the model can be split, and has outputs for all classes, where labels are such."""
    model = task.new_model()
    names = [name for name, _ in model.named_children()]
    if not isinstance(model, nn.Sequential) or names[-1:] != ["head"]:
        raise MisfitError("one whose model is an nn.Sequential of named blocks, the last one called head")
    example = task.example_input()
    try:
        cut_shapes(model, example)
    except FAULTS as error:  # the model is foreign code
        wanted = "one whose blocks each take what the one before gives, a tensor"
        raise MisfitError(f"{wanted} ({error_line(error)})") from None
    check_model(task)
    check_blocks(model, example)
    labels = task.test_examples().labels
    if not are_classes_of_places(labels):
        return
    # One output tells two classes apart.
    outputs, largest = max(getattr(model[-1], "out_features", math.inf), 2), int(labels.max())
    if largest >= outputs:
        raise MisfitError(f"one whose labels are less than {outputs}, by the outputs of its head, not {largest}")


def are_classes(labels: Tensor) -> bool:
    """Return whether labels are class indices, one for each example."""
    is_integer = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    return is_integer and labels.dim() == 1 and bool((labels >= 0).all())


def are_classes_of_places(labels: Tensor) -> bool:
    """Return whether labels are class indices, one for each example, or for each of its places that counts."""
    counting = labels.flatten() if labels.dim() == 1 else labels[labels != IGNORED]
    return are_classes(counting)


def _try_cut(task: Task, tried: Tried, cut: Cut, form: Format | None, seed: int, num_examples: int) -> None:
    pool = task.test_examples()
    rows = spread_over(pool, num_examples)
    few = Examples(rows_on(pool.inputs, rows, CPU), pool.labels[rows])
    client = ClientTask(
        model=task.new_model(),
        train=few,
        test=few,
        prepare=tried.prepare,
        training=task.training,
        seed=seed,
        partition_id=0,
        class_counts=(),
        device=CPU,
        objective=task.objective,
    )
    with seeded_torch(seed, CPU):
        try_cut(tried, client, cut, form)
