"""What a task is: the model and the data of a run, and the clients' part of it."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Protocol

from torch import nn

from espalier.app.tasks.node import ClientNode
from espalier.clients.messages.frames import Format
from espalier.clients.shared.cut import Cut
from espalier.clients.task import ClientTask, Examples, LocalTraining, Objective


class Task(Protocol):
    """What the rest of the app asks of a task; `espalier.app.wiring.task_of_run.build_task` makes that of a run config.

    What a task has loaded it keeps, so one is made per process.

    Attributes
    ----------
    training : LocalTraining
        How clients train.
    objective : Objective
        What models are trained for and judged by.
    grows : bool
        Clients get more training examples from round to round.
    top_m : tuple[int, ...]
        Clients tell their top-M accuracies for these M.
    counts_requests : bool
        Labels are contents that were asked for, which can be ranked by how often.
    own_way : str
        Where clients train in a way of their own, that can neither be stacked nor recorded: which do, in words.
    has_own_model : bool
        The model is part of the task; the run config names none.
    label_shape : tuple[int, ...]
        Of an example's labels: (T,) where each of T places has one.
    has_own_methods : bool
        Beside model and data, clients call methods of a user's own.
    side_by_side : bool, optional
        Whether clients may run at the same time, in threads; None: where neither the model nor methods are in the way.
    has_corners : bool
        There may be clients that have but corners of some weights.
    """

    training: LocalTraining
    objective: Objective = Objective()
    grows: ClassVar[bool] = False
    top_m: ClassVar[tuple[int, ...]] = ()
    counts_requests: ClassVar[bool] = False
    own_way: ClassVar[str] = ""
    has_own_model: ClassVar[bool] = False
    has_own_methods: bool = False

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Return the shape of an example's labels; one label by default."""
        return ()

    side_by_side: bool | None = None
    has_corners: bool = False

    def corners(self, client: int) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of those weights of which a client has but a corner; none by default."""
        return {}

    def check_data(self) -> None:
        """Raise UserError if the data can't be had."""

    def try_cuts(self, cuts: Collection[Cut], form: Format | None) -> None:
        """Raise UserError if no step of split training can be made; models that come with the app need no trial.

        Parameters
        ----------
        cuts : Collection[Cut]
            Where the model is cut.
        form : Format, optional
            How activations and gradients travel in streams; None: in messages.
        """

    def data_fingerprint(self) -> str:
        """Return a hash of the data."""

    def new_model(self) -> nn.Module:
        """Return the model with the initial weights that the seed gives; where it is to be split, an nn.Sequential."""

    def example_input(self) -> Any:
        """Return a batch of one example as the model takes it, on the CPU."""

    def test_examples(self) -> Examples:
        """Return the whole test pool."""

    def normaliser(self) -> Callable[[Any], Any]:
        """Return the function from inputs of `test_examples` to those of the model."""

    def describe(self) -> dict[str, Any]:
        """Return what to know of model and data to use a trained model elsewhere, as plain data; nothing by default."""
        return {}

    def num_examples(self, client: int) -> tuple[int, int] | None:
        """Return how many examples a client trains on, and is tested on; None if its data have to be made for that."""
        return None

    def class_counts(self, client: int) -> tuple[int, ...]:
        """Return a client's training examples per class, where `num_examples` can tell; empty for no classes."""
        return ()

    def new_client_task(self, model: nn.Module, node: ClientNode) -> ClientTask:
        """Return the task of one client, which works on `model`."""

    def centralised_task(self) -> ClientTask:
        """Return the task of one client that has all the data."""

    def loaded(self) -> Any:
        """Return what the clients' data are made of, for other processes; None where each reads no more than it needs.

        It can be pickled, and its tensors are on the CPU.
        """
        return None

    def take_loaded(self, loaded: Any) -> None:
        """Use what `loaded` returned in another process, instead of loading it again; its tensors are not writable."""
        return
