"""What an algorithm is: a frozen value that says what its edges do, and in which respects it differs from others."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from flwr.serverapp.strategy import Strategy
from torch import nn

from espalier.app.algorithms.tiers import TIERS, TierKind
from espalier.app.planning.rule import PlanRule
from espalier.app.settings.section import Section
from espalier.app.settings.sections import Federation, Split, TrainSettings
from espalier.app.tasks.task import Task
from espalier.clients.half import PLAIN, ClientHalf
from espalier.clients.shared.cut import Cut, as_blocks
from espalier.strategies import EdgeRounds
from espalier.strategies.split.transports import Transport

# What a Flower strategy waits for, where one node is enough.
ONE_NODE: Mapping[str, Any] = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}

Tiers = Literal["one", "two", "one or two"]


@dataclass(frozen=True)
class Site:
    """An edge that is to be made, and what it can be made of.

    Parameters
    ----------
    name : str
        Of the edge; "cloud" for the one group of clients of an algorithm without edges.
    size : int
        Number of its clients.
    seed : int
        For what the edge draws; every edge has one of its own.
    cut_of : Callable[[int], Cut]
        Where the model is cut for a client, by its node id; for algorithms that split it.
    client_of : Mapping[int, int]
        Client number by node id.
    transport : Transport, optional
        How mini-batches travel; None is by messages.
    task : Task
        Model and data.
    federation, train, split
        Sections of the run config.
    device : torch.device
        Where the edge computes.
    max_steps : Callable[[int], int], optional (default: None)
        The most mini-batches that a client has in an edge round, by its node id; None: not known.
    stacks : bool (default: False)
        Clients' blocks of the server, where each has its own, compute side by side.
    own : Section, optional (default: None)
        The algorithm's own settings, see `Algorithm.section`.
    auxiliary : nn.Sequential, optional (default: None)
        What clients' auxiliary heads are before any training, on the CPU; None where there are none.
    """

    name: str
    size: int
    seed: int
    cut_of: Callable[[int], Cut]
    client_of: Mapping[int, int]
    transport: Transport | None
    task: Task
    federation: Federation
    train: TrainSettings
    split: Split
    device: torch.device
    max_steps: Callable[[int], int] | None = None
    stacks: bool = False
    own: Section | None = None
    auxiliary: nn.Sequential | None = None

    def new_model(self) -> nn.Sequential:
        """Return a model of the edge's own to split, on the device that it computes on."""
        return as_blocks(self.task.new_model().to(self.device))


@dataclass(frozen=True)
class Algorithm:
    """An algorithm. One of your own is named in the run config: ``algorithm="your_package.module:NAME"``.

    Parameters
    ----------
    name : str
        As the run config and the reports call it.
    summary : str
        What it is, in a line of ``--help``.
    make_edge : Callable[[Site], Strategy | EdgeRounds]
        Makes an edge: a Flower strategy, or what trains and evaluates by itself.
    tiers : str (default: "two")
        "two": edges under a cloud. "one": the clients are under the cloud. "one or two": "one", unless ``num-edges`` is
        2 or more.
    strategy_key : str (default: "")
        The key of the Flower strategy that its edges are made from; empty where they are not.
    splits : bool (default: False)
        It cuts the model.
    shares_server : bool (default: False)
        Clients share one server block, so they have one cut.
    in_turn : Callable[[Split], bool] (default: never)
        Whether clients train one after the other, which no plan can be made for.
    freezes_head : bool (default: False)
        The head keeps its initial weights while all train.
    tunes : bool (default: False)
        After training, its edges have each client fine-tune a model of its own, as ``fine-tune`` says; so do those of
        all that cut the model.
    rule : PlanRule, optional (default: None)
        It always has plans, made in this way. None: only with ``selection = "resource-aware"``.
    adds_gradients : bool (default: False)
        Edges add up gradients: all clients of an edge weigh the same by themselves, and all edges.
    counts_gradients : bool (default: False)
        It goes by how many gradients are in the change of a client's model, which is known of SGD alone.
    averages : bool (default: True)
        It averages models of clients.
    takes_means : bool (default: True)
        Its edges make the same of what clients send as of as many times the mean of it.
    sends_alike : bool (default: True)
        What edges of whole models send beside the model is the same for all of their clients.
    client : ClientHalf (default: FedAvg's client)
        What its clients do: how their steps are corrected, what they keep, what never leaves them, how they answer.
    passes : Callable[[Section | None], int] (default: 1)
        How often a client trains on each mini-batch of a local round, by the algorithm's own settings: plans count the
        cycles of all these passes. It is not asked for cut models.
    trains_clients : bool (default: True)
        Clients train; else the server does, or nobody.
    has_model : bool (default: True)
        It trains a model.
    section : type[Section], optional (default: None)
        Its own settings, whose keys begin with the section's name. Several algorithms may have one section. One of your
        own has those of a built-in one, or the defaults of its section.
    auxiliary : "averaged", "own" or "" (default: "")
        Clients train by the loss of an auxiliary head, ``split.auxiliary``, and no gradient comes back. "averaged": the
        heads are averaged, and travel with the model. "own": each client has its own. "": there are none.
    ranks_requests : bool (default: False)
        It is for tasks whose labels are contents that were asked for.
    written : str (default: "")
        As a run config names it; set where it is looked up.
    """

    name: str
    summary: str
    make_edge: Callable[[Site], Strategy | EdgeRounds]
    tiers: Tiers = "two"
    strategy_key: Literal["cloud-strategy", "edge-strategy", ""] = ""
    splits: bool = False
    shares_server: bool = False
    in_turn: Callable[[Split], bool] = lambda split: False
    freezes_head: bool = False
    tunes: bool = False
    rule: PlanRule | None = None
    adds_gradients: bool = False
    counts_gradients: bool = False
    averages: bool = True
    takes_means: bool = True
    sends_alike: bool = True
    client: ClientHalf = PLAIN
    passes: Callable[[Section | None], int] = lambda own: 1
    trains_clients: bool = True
    has_model: bool = True
    section: type[Section] | None = None
    auxiliary: Literal["averaged", "own", ""] = ""
    ranks_requests: bool = False
    written: str = ""

    @property
    def text(self) -> str:
        """As a run config names it."""
        return self.written or self.name

    @property
    def fine_tunes(self) -> bool:
        """Whether clients fine-tune models of their own after training."""
        return self.splits or self.tunes

    @property
    def sends_nothing(self) -> bool:
        """Whether clients train for themselves alone, and so edges have nothing new; not known of a user's own."""
        return self.trains_clients and not (self.averages or self.splits or self.written)

    @property
    def files(self) -> set[str]:
        """The file that it is in, and those beside it, where it is a user's own."""
        file = getattr(sys.modules.get(self.written.partition(":")[0]), "__file__", None)
        return set(map(str, Path(file).parent.glob("*.py"))) if file else set()

    @property
    def by_edges(self) -> TierKind:
        """What ``num-edges`` means for it."""
        return TIERS[self.tiers]
