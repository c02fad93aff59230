"""How clients of one process train: side by side, recorded, in fused steps, or in workers."""

from espalier.app.features.case import Case
from espalier.app.features.feature import Feature, Unused
from espalier.app.settings.sections import RayWorkers


def without_use(case: Case) -> Unused:
    """Yield what says how clients of one process train, where they can't train so."""
    algorithm, split = case.algorithm, case.split
    name = f"algorithm = {algorithm.text!r}"
    if why := case.decided.why_not_stacked:
        yield ("stack",), why
    if why := case.decided.why_in_turn:
        yield ("workers",), why
    if why := case.decided.why_not_recorded:
        yield ("train.cuda-graph",), why
    if case.engine.is_flowers or split.transport == "stream":
        yield ("split.execution",), "clients and edges have processes of their own, or streams between them"
    elif case.has_clients_in_workers:
        yield ("split.execution",), case.no_edge_in_a_worker
    elif algorithm.auxiliary:
        yield ("split.execution",), f"in {name} activations come with a client's reply"
    elif algorithm.shares_server and not algorithm.in_turn(split):
        yield ("split.execution",), f"in {name} clients advance together, by messages"
    if why := case.why_no_ledger:
        yield ("report.ledger",), why
    if not case.engine.has_workers:
        yield RayWorkers.own_keys(), f"engine = {case.engine.text!r}"


EXECUTION = Feature(name="execution", without_use=without_use)
