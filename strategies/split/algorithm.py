"""SFL-V1 whose clients do what another algorithm says: its rule runs on both sides of the cut, each with its blocks."""

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from torch import Tensor

from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.correction import Weights
from espalier.clients.shared.local_round import Begun, Learned, LocalRound, Rule, begun_by, ended, first_correction
from espalier.clients.shared.text import quoted

from ..edge_half import EdgeHalf, Gathered, GuardOfTold, averaged_within, checked_half, moved, of_blocks, sent_beside
from ..exchange import Exchanges
from ..views import MemberGrid
from .averages import on_cpu
from .joint import ClientOfJoint
from .loop import SplitOutcome, State
from .losses import Losses
from .server_block import ServerSide
from .sfl_v1 import SplitFedV1


class SplitAlgorithm(SplitFedV1):
    """SFL-V1 with a rule: a client's blocks follow it on the device, and its server's blocks here.

    So split training of such an algorithm equals that of whole models, as SFL-V1 equals FedAvg, while clients neither
    move nor are gone before they answer: what this side keeps of a client stays here, and as it was.

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
        self.half = checked_half(half)
        self._kept: dict[int, Weights] = {}  # of clients' server blocks, from round to round
        self._rounds: dict[int, LocalRound] = {}
        self._heard: dict[int, Weights] = {}  # what clients told in the round, in both parts
        self._told = GuardOfTold(lambda: self.guard)
        self._averaged = GuardOfTold(lambda: self.guard)

    def split_round(
        self,
        server_round: int,
        weights: State,
        config: ConfigRecord,
        clients: Sequence[int],
        losses: Losses,
        grid: MemberGrid,
    ) -> Exchanges[tuple[SplitOutcome, State]]:
        """Train as SFL-V1 does, and let the edge's half know where it began and what came of it."""
        self.half.begin(server_round, moved(weights))
        outcome, new = yield from super().split_round(server_round, weights, config, clients, losses, grid)
        if outcome.blocks:
            self.half.learn(moved(new), {n: self._heard[n] for n in outcome.blocks}, grid.num_clients)
        return outcome, new

    def beside(self, node_id: int) -> Mapping[str, Tensor]:
        """Return what the edge's half sends."""
        return sent_beside(self.half, node_id)

    @property
    def corrects(self) -> bool:
        """True: the rule corrects them."""
        return True

    def begin_halves(self, servers: Mapping[int, ServerSide | ClientOfJoint], pull: float) -> None:
        """Let the rule correct the steps of every client's server blocks."""
        self._rounds, model = {}, self.model.state_dict()
        for node_id, server in servers.items():
            assert isinstance(server, ServerSide)
            start = {name: tensor.detach().clone() for name, tensor in server.state_dict().items()}
            own = of_blocks(sent_beside(self.half, node_id), start, model)
            trained = {name: start[name] for name in server.trained}
            begun = Begun(start, trained, own, self._kept.get(node_id, {}))
            self._rounds[node_id] = begun_by(self.rule, begun)
            server.correct(first_correction(self._rounds[node_id]).pulled(pull, trained))

    def end_halves(
        self,
        outcome: SplitOutcome,
        servers: Mapping[int, ServerSide | ClientOfJoint],
        start: State,
        models: dict[int, State],
        grid: MemberGrid,
    ) -> dict[int, State]:
        """End the rounds of server blocks, and let the edge's half say what of the models is averaged."""
        told, twice = dict[int, Weights](), dict[int, str]()
        for node_id, server in servers.items():
            assert isinstance(server, ServerSide)
            learned = Learned(on_cpu(server.state_dict()), server.path, server.steps, server.momentum, server.pull)
            done = ended(self._rounds[node_id], learned)
            of_client = outcome.told.get(node_id, {})
            if both := sorted(of_client.keys() & done.told.keys()):  # is it their sum, or mean?
                twice[node_id] = f"its blocks and the server's both tell {quoted(both[0])}, expected one of the two"
            else:
                told[node_id] = {**of_client, **done.told}
            if done.kept is not None and done.is_of_use:
                self._kept[node_id] = on_cpu(dict(done.kept))
        self._heard, too_long = self._told.within_bounds(told, start)
        faults = {**twice, **too_long}
        good = {n: model for n, model in models.items() if n not in faults}
        gathered = Gathered.of(start, good, self._heard, outcome.num_examples, grid.num_clients)
        averaged, useless = averaged_within(self.half, gathered, self._averaged)
        for node_id, fault in {**faults, **useless}.items():
            outcome.leave_out(node_id, fault)
        return {n: {**model, **averaged[n]} for n, model in good.items() if n in averaged}

    def clients_begin_anew(self) -> None:
        """Forget clients' parts of this side too."""
        self._kept = {}
        self.half.clients_begin_anew()

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive an interruption."""
        kept = {str(node_id): to_record(weights) for node_id, weights in self._kept.items()}
        guards = {"told": self._told.state_dict(), "averaged": self._averaged.state_dict()}
        own = {"half": self.half.state_dict(), "kept": kept, **guards}
        return {**super().state_dict(), "algorithm": own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        super().load_state_dict(state)
        own = state["algorithm"]
        self.half.load_state_dict(own["half"])
        kept: Mapping[str, ArrayRecord] = own["kept"]
        self._kept = {int(node_id): to_weights(weights) for node_id, weights in kept.items()}
        self._told.load_state_dict(own["told"])
        self._averaged.load_state_dict(own["averaged"])
