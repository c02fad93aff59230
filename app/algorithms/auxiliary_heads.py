"""The auxiliary heads that a run config can name, and the head of a run."""

from collections.abc import Mapping
from typing import cast

from torch import nn

from espalier.app.algorithms.split_edges import check_cuts
from espalier.app.ground.errors import FAULTS, UserError, bad_value
from espalier.app.ground.object_spec import error_line
from espalier.app.ground.registered import built_in, call_with
from espalier.app.settings.sections import Split
from espalier.app.tasks.task import Task
from espalier.clients.shared.cut import as_blocks
from espalier.clients.split.auxiliary import MakeHead, first_block_head, linear_head, new_head
from espalier.strategies.randomness import derived_seed

HEADS: Mapping[str, MakeHead] = {"linear": linear_head, "first-block": first_block_head}


def auxiliary_head(split: Split, task: Task, seed: int) -> nn.Sequential:
    """Return what clients' auxiliary heads are before any training, by ``split.auxiliary``; the same in all of a run.

    Parameters
    ----------
    split : Split
        Names the head, and where the model is cut.
    task : Task
        Has the model.
    seed : int
        Of the run.

    Raises
    ------
    UserError
        If there is no such head, or a user's own fails or does not fit.
    """
    spec, model = split.auxiliary, as_blocks(task.new_model())
    if task.label_shape:
        raise bad_value(spec.key, spec.text, "a task with one label for each example: its loss is that of a head")
    known = built_in(spec, HEADS)

    def own(blocks: nn.Sequential, activations: object, num_outputs: int) -> nn.Module:
        offered = {"blocks": blocks, "activations": activations, "num_outputs": num_outputs}
        return cast(nn.Module, call_with(spec, offered))

    outputs = cast(int, model[-1].out_features)
    cut = check_cuts(split, model)[0]
    try:
        return new_head(known or own, model, cut, task.example_input(), outputs, derived_seed(seed, "auxiliary head"))
    except UserError:
        raise
    except ValueError as error:
        raise bad_value(spec.key, spec.text, str(error)) from None
    except FAULTS as error:  # it may be foreign code
        raise bad_value(spec.key, spec.text, f"a head that takes the activations ({error_line(error)})") from None
