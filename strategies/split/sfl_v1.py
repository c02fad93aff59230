"""SFL-V1: a server block per client (arXiv:2004.12088; HSFL and PHSFL nest it)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message
from torch import nn

from espalier.clients.messages.train import PROXIMAL_MU, Trained, proximal_mu
from espalier.clients.shared.arrays import to_record
from espalier.clients.shared.correction import NO_CORRECTION
from espalier.clients.shared.cut import Cut
from espalier.clients.shared.records import records_in

from ..exchange import REJECTED, Exchanges
from ..outcomes import EVERYBODY, Failure, Update
from ..randomness import derived_seed
from ..strategy_edge import StrategyEdge
from ..views import EdgeGrid, MemberGrid
from .averages import average, on_cpu
from .choices import beyond_a_choice
from .edge import SplitEdge
from .joint import ClientOfJoint, JointBlocks, MakeJointBlocks, make_joint_steps
from .loop import SplitOutcome, State
from .losses import Losses
from .server_block import MakeOptimizer, ServerSide
from .serving import MiniBatch, Steps, side_by_side


class SplitFedV1(SplitEdge):
    """SFL-V1: a server block per client, in parallel; whole models are averaged at the end of the round.

    With an optimizer like the clients' this is FedAvg with the same mini-batches, whatever the cut, so every client may
    have a cut of its own (Proposition 1 of the SFL cut-layer paper, for SGD).

    Parameters
    ----------
    model, cut_of, make_optimizer, **options
        As for `SplitEdge`.
    aggregation : StrategyEdge, optional (default: None)
        Its strategy, of any kind, says who trains, gets the clients' whole models, client block and server block
        together, as if they had been trained whole, and evaluates. None: everybody, the average by examples, and
        `evaluation`. One that sends clients another model than the edge's, or tells them anything but the weight of
        FedProx's proximal term, is a failure of the round: split training can't pass it on.
    together : Callable[[nn.Module, int], JointBlocks], optional (default: None)
        Makes the server's blocks of all clients of a cut as one, for a round, from what each starts from. The results
        agree to rounding. None, where clients have the head, where steps are corrected, and under a guard that clips,
        for then each step waits for its verdict: each client's are a `ServerSide` of their own.
    """

    def __init__(
        self,
        model: nn.Sequential,
        cut_of: Callable[[int], Cut | int],
        make_optimizer: MakeOptimizer,
        *,
        aggregation: StrategyEdge | None = None,
        together: MakeJointBlocks | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, cut_of, make_optimizer, **options)
        self.aggregation = aggregation
        self.strategy = None if aggregation is None else aggregation.strategy
        self.together = together

    def split_round(
        self,
        server_round: int,
        weights: State,
        config: ConfigRecord,
        clients: Sequence[int],
        losses: Losses,
        grid: MemberGrid,
    ) -> Exchanges[tuple[SplitOutcome, State]]:
        """Train every client against a server block of its own, then aggregate."""
        asked, sent, pull = list[Message](), ArrayRecord(), proximal_mu(config)
        if self.aggregation is not None:
            # The strategy gets to see all of a model but a frozen head.
            sent = to_record({n: w for n, w in weights.items() if self.frozen is None or n not in self.frozen})
            asked, faults = _asked(self.aggregation, server_round, sent, config, EdgeGrid(grid, clients))
            if faults:
                return SplitOutcome(failures=faults), weights
            clients = [message.metadata.dst_node_id for message in asked]
            pull = max(map(_pull_in, asked), default=0.0)
        own = {name: weights[name] for name in self.model.state_dict()}
        self.model.load_state_dict(own)  # once for all of the copies made next
        servers = self._servers(clients, server_round, pull)
        self.begin_halves(servers, pull)
        joint = [server for server in servers.values() if isinstance(server, ClientOfJoint)]

        def generator_of(node_id: int) -> torch.Generator:
            purpose = "server", server_round, *losses.place_and_step(node_id)
            return torch.Generator().manual_seed(derived_seed(self.seed, *purpose))

        def serve(batches: list[MiniBatch]) -> Steps:
            make_joint_steps(joint, batches, generator_of)
            return side_by_side({b.node_id: self.step(servers[b.node_id], b, server_round, losses) for b in batches})

        outcome = yield from self.converse([[n] for n in clients], weights, server_round, config, serve, pull)
        losses.report(outcome.train_losses)
        # Long activations have spoilt only their client's own server block, so it is early enough to compare them when
        # all have trained. They can no longer be clipped then, but the update that came of them can.
        too_long = self.judge_activations()
        if not self.clips:
            for node_id in [node_id for node_id in outcome.blocks if node_id in too_long]:
                outcome.leave_out(node_id, too_long[node_id])
        models = {n: {**block, **on_cpu(servers[n].state_dict())} for n, block in outcome.blocks.items()}
        models = self.keep_within(outcome, weights, models)
        models = self.end_halves(outcome, {n: servers[n] for n in models}, weights, models, grid)
        if not models:
            return outcome, weights
        if self.aggregation is None:
            return outcome, average(models, outcome.num_examples)
        update = _aggregated(self.aggregation, server_round, sent, asked, models, outcome, losses)
        outcome.failures += update.failures
        outcome.keep_only(() if update.arrays is None else update.participants)
        if update.arrays is None:
            return outcome, weights
        outcome.metrics = update.metrics
        return outcome, {**weights, **update.arrays.to_torch_state_dict()}

    @property
    def corrects(self) -> bool:
        """Whether steps of the server's blocks are corrected: then each client's are a `ServerSide` of their own."""
        return False

    def begin_halves(self, servers: Mapping[int, ServerSide | ClientOfJoint], pull: float) -> None:
        """Let the server's blocks of clients begin a round, with the weight of FedProx's proximal term."""
        for server in servers.values() if pull else ():
            assert isinstance(server, ServerSide)
            anchor = {name: parameter.detach().clone() for name, parameter in server.trained.items()}
            server.correct(NO_CORRECTION.pulled(pull, anchor))

    def end_halves(
        self,
        outcome: SplitOutcome,
        servers: Mapping[int, ServerSide | ClientOfJoint],
        start: State,
        models: dict[int, State],
        grid: MemberGrid,
    ) -> dict[int, State]:
        """Take note of how the round ended; return what of the clients' models is averaged."""
        return models

    def _servers(self, clients: Sequence[int], server_round: int, pull: float) -> dict[int, ServerSide | ClientOfJoint]:
        """Return the server's blocks of every client, as the model is now."""
        alone = self.together is None or self.clips or self.corrects or pull
        servers: dict[int, ServerSide | ClientOfJoint] = {}
        joint: dict[Cut, JointBlocks] = {}
        for node_id in clients:
            cut = self.cut_of(node_id)
            if cut not in joint:
                own = self.server_block(cut)
                self.set_learning_rates(own, server_round)
                if alone or cut.has_tail(self.model):
                    servers[node_id] = own
                    continue
                assert self.together is not None
                joint[cut] = self.together(own.blocks, server_round)
            servers[node_id] = ClientOfJoint(joint[cut], node_id, next(self.model.parameters()).device)
        return servers

    @property
    def evaluator(self) -> StrategyEdge:
        """The strategy that aggregates, where there is one."""
        return self.aggregation or self.evaluation

    def use_seed(self, seed: int | str, *, hides_noise: bool) -> None:
        """Let what the strategy draws, where there is one, follow a seed from the tier above."""
        if self.aggregation is not None:
            self.aggregation.use_seed(seed, hides_noise=hides_noise)

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption, the strategy's state among it."""
        own = {} if self.aggregation is None else {"aggregation": self.aggregation.state_dict()}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        super().load_state_dict(state)
        if self.aggregation is not None:
            self.aggregation.load_state_dict(state["aggregation"])


def _asked(
    edge: StrategyEdge, server_round: int, sent: ArrayRecord, config: ConfigRecord, grid: EdgeGrid
) -> tuple[list[Message], list[Failure]]:
    """Return a strategy's instructions to train, in client order; or failures, where they can't be followed."""
    messages, failures = edge.instructions(server_round, sent, config, grid)
    for message in messages:
        if fault := beyond_a_choice(message, sent, config, (PROXIMAL_MU,)):
            return [], [Failure(EVERYBODY, f"{edge.name} {fault}")]
    if len(set(map(_pull_in, messages))) > 1:
        return [], [Failure(EVERYBODY, f"{edge.name} tells clients different values of {PROXIMAL_MU}")]
    return messages, failures


def _pull_in(message: Message) -> float:
    """Return the weight of the proximal term that an instruction tells; 0 where it does not."""
    return max(map(proximal_mu, records_in(message.content, ConfigRecord).values()), default=0.0)


def _aggregated(
    edge: StrategyEdge,
    server_round: int,
    sent: ArrayRecord,
    asked: Sequence[Message],
    models: Mapping[int, State],
    outcome: SplitOutcome,
    losses: Losses,
) -> Update:
    """Return what a strategy makes of the models of those asked, as if they had been trained whole."""
    replies = []
    for message in asked:
        n = message.metadata.dst_node_id
        if n in models:
            trained = to_record({name: values for name, values in models[n].items() if name in sent})
            content = Trained(trained, losses.of(n), outcome.num_examples[n]).to_content()
            replies.append(Message(content, reply_to=message))
        else:
            replies.append(Message(Error(REJECTED, "it has left the round"), reply_to=message))
    screened, failures = edge.screened(asked, replies)
    # Who has left is a failure of the round already.
    return edge.aggregated(server_round, sent, asked, screened, [f for f in failures if f.node_id in models])
