"""How clients of one process train: side by side, recorded, in fused steps, or in workers."""

from espalier.app.features.case import Case
from espalier.app.features.feature import Feature, Unused
from espalier.app.ground.reasons import first_reason, unused


def without_use(case: Case) -> Unused:
    """Return what says how clients of one process train, where they can't train so."""
    algorithm, split = case.algorithm, case.split
    name = f"algorithm = {algorithm.text!r}"
    are_apart = case.on_devices or case.transport.opens_streams
    why_not_fused = first_reason(
        (are_apart, "clients and edges have processes of their own, or streams between them"),
        (case.has_clients_in_workers, case.no_edge_in_a_worker),
        (algorithm.auxiliary, f"in {name} activations come with a client's reply"),
        (algorithm.shares_server and not algorithm.in_turn(split), f"in {name} clients advance together, by messages"),
    )
    decided = case.decided
    return unused(
        (decided.why_not_stacked, ("stack",), decided.why_not_stacked),
        (decided.why_in_turn, ("workers",), decided.why_in_turn),
        (decided.why_not_recorded, ("train.cuda-graph",), decided.why_not_recorded),
        (why_not_fused, ("split.execution",), why_not_fused),
        (case.why_no_ledger, ("report.ledger",), case.why_no_ledger),
    )


EXECUTION = Feature(name="execution", without_use=without_use)
