"""SFL-V1 whose clients do what another algorithm says: its rule runs on both sides of the cut, each with its blocks."""

from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord
from torch import Tensor

from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.correction import Weights
from espalier.clients.shared.local_round import Begun, Learned, LocalRound, Rule, ended

from ..edge_half import EdgeHalf, GuardOfTold
from ..views import MemberGrid
from .averages import on_cpu
from .joint import ClientOfJoint
from .loop import SplitOutcome
from .server_block import ServerSide
from .sfl_v1 import SplitFedV1


class SplitAlgorithm(SplitFedV1):
    """SFL-V1 with a rule: a client's blocks follow it on the device, and its server's blocks here.

    So split training of such an algorithm equals that of whole models, as SFL-V1 equals FedAvg.

    Parameters
    ----------
    *arguments, **options
        As for `SplitFedV1`.
    rule : Rule
        The client's half of the algorithm.
    half : EdgeHalf
        The edge's half.
    """

    def __init__(self, *arguments: Any, rule: Rule, half: EdgeHalf, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.rule = rule
        self.half = half
        self._kept: dict[int, Weights] = {}  # of clients' server blocks, from round to round
        self._rounds: dict[int, LocalRound] = {}
        self._told = GuardOfTold(lambda: self.guard)

    def beside(self) -> Mapping[str, Tensor]:
        """Return what the edge's half sends."""
        return self.half.sent()

    def begin_halves(self, servers: Mapping[int, ServerSide | ClientOfJoint]) -> None:
        """Let the rule correct the steps of every client's server blocks."""
        sent = self.half.sent()
        self._rounds = {}
        for node_id, server in servers.items():
            assert isinstance(server, ServerSide)
            start = {name: tensor.detach().clone() for name, tensor in server.state_dict().items()}
            own = {name: tensor for name, tensor in sent.items() if name in start}
            trained = {name: start[name] for name in server.trained}
            self._rounds[node_id] = self.rule(Begun(start, trained, own, self._kept.get(node_id, {})))
            server.correct(next(self._rounds[node_id]).correction)

    def end_halves(
        self, outcome: SplitOutcome, servers: Mapping[int, ServerSide | ClientOfJoint], grid: MemberGrid
    ) -> None:
        """End the rounds of server blocks, and let the edge's half learn what both parts of each client tell."""
        told: dict[int, Weights] = {}
        for node_id, server in servers.items():
            assert isinstance(server, ServerSide)
            done = ended(self._rounds[node_id], Learned(on_cpu(server.state_dict()), server.path))
            told[node_id] = {**outcome.told.get(node_id, {}), **done.told}
            if done.kept is not None:
                self._kept[node_id] = on_cpu(dict(done.kept))
        told, faults = self._told.within_bounds(told)
        for node_id, fault in faults.items():
            outcome.leave_out(node_id, fault)
        self.half.learn(told, grid.num_clients)

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        kept = {str(node_id): to_record(weights) for node_id, weights in self._kept.items()}
        own = {"half": self.half.state_dict(), "kept": kept, "told": self._told.state_dict()}
        return {**super().state_dict(), "algorithm": own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        super().load_state_dict(state)
        own = state["algorithm"]
        self.half.load_state_dict(own["half"])
        kept: Mapping[str, ArrayRecord] = own["kept"]
        self._kept = {int(node_id): to_weights(weights) for node_id, weights in kept.items()}
        self._told.load_state_dict(own["told"])
