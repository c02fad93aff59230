"""What does not go together with clients that are put under other edges, and what has no use there."""

from espalier.app.features.association.settings import Hfel
from espalier.app.features.case import Case
from espalier.app.features.feature import Unused
from espalier.app.ground.errors import bad_value
from espalier.app.ground.reasons import first_reason
from espalier.app.tasks.partition import goes_by_edges

# Of pairs of clients there are too many above these: with 4 edges 48 take "cheapest" 20 s.
MOST_CLIENTS = {"balanced": 4096, "cheapest": 48}


def check(case: Case) -> None:
    """Refuse an association where nothing says what it costs, or where something else says who is where."""
    association, clients = case[Hfel].association, case.federation.num_clients
    if association == "given":
        return
    if why := _why_not(case):
        raise bad_value("association", association, f"'given' {why}")
    if clients > (most := MOST_CLIENTS.get(association, clients)):
        allowed = f"'nearest', or num-clients of at most {most} (here {clients}), whose pairs its search tries"
        raise bad_value("association", association, allowed)


def _why_not(case: Case) -> str:
    federation = case.federation
    return first_reason(
        (case.is_flat, f"for {case.algorithm.name} without edges"),
        (not case.rule, "without the radio world of plans: set selection='resource-aware', or algorithm='rawhfl'"),
        (
            case.plan.resources != "simulated",
            f"for plan.resources = {case.plan.resources!r}: it needs the simulated radio world",
        ),
        (not case.here.is_whole, f"for deploy.role = {case.deploy.role!r}: each host has its own clients"),
        (federation.edge_names.text, f"for edge-names = {federation.edge_names.text!r}: nodes name their edges"),
        (case.movers, f"for {next(iter(case.movers), '')}, by which clients move: it holds for the whole run"),
        (case.radio.trace, f"for radio.trace = {case.radio.trace!r}, which says whose cell a client is in"),
        (
            goes_by_edges(case.data.partition),
            f"for partition = {case.data.partition.text!r}: data belong to the edges",
        ),
        (case.algorithm.splits, f"for {case.algorithm.name}: HFEL's clients train whole models"),
        (case.out_of_step, f"for {case.out_of_step}: HFEL's edges wait for each other"),
    )


def without_use(case: Case) -> Unused:
    """Yield what HFEL's cost is made of, where nobody asks for it."""
    if case[Hfel].association == "given":
        yield Hfel.own_keys(), "association = 'given'"
