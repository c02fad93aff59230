"""What does not go together with secure aggregation, since it has to see single updates, or more than their sum."""

from collections.abc import Mapping
from itertools import count
from math import ceil

from espalier.app.features.case import Case
from espalier.app.features.feature import Unused
from espalier.app.features.secure_aggregation.settings import Secure
from espalier.app.ground.errors import UserError, bad_value
from espalier.app.ground.reasons import first_reason
from espalier.clients.secure.identity import KNOWN_KEYS, OWN_KEY
from espalier.strategies.randomness import sample_size

# Of the built-in strategies, those that make the same of all models as of their mean.
MEANS = ("FedAvg", "FedProx", "FedAvgM", "FedAdam", "FedAdagrad", "FedYogi")


def is_on(case: Case) -> bool:
    """Return whether updates come under masks."""
    return case[Secure].aggregation and case.algorithm.trains_clients


def check(case: Case) -> None:
    """Refuse settings that need single updates, and edges that can't have enough clients."""
    if not is_on(case):
        return
    own = case[Secure]
    if why := _why_not_algorithm(case) or case.single_updates:
        raise _refused(why)
    if own.neighbours and own.neighbours + 1 < own.fewest:
        allowed = f"0, or {own.fewest - 1} or more: with secure.fewest = {own.fewest} so many must be left"
        raise bad_value("secure.neighbours", own.neighbours, allowed)
    at_edge = not case.here.is_whole
    clients = case.deploy.edge_clients if at_edge else case.federation.num_clients // case.edges
    share = case.federation.participation
    asked = sample_size(clients, share)
    if asked < own.fewest and case.here.reaches_clients:
        enough = next(n for n in count(ceil(own.fewest / share)) if sample_size(n, share) >= own.fewest)
        key, given = ("deploy.edge-clients", clients) if at_edge else ("num-clients", case.federation.num_clients)
        least, why = enough * (1 if at_edge else case.edges), f"secure.fewest = {own.fewest} at each edge in a round"
        allowed = f"{least} or more, for {why}: now it is {asked}"
        raise bad_value(key, given, allowed)


def _why_not_algorithm(case: Case) -> str:
    algorithm, name, cuts = case.algorithm, f"algorithm = {case.algorithm.text!r}", case.split.cut_layer
    in_turn = algorithm.splits and algorithm.in_turn(case.split)
    takes_means = algorithm.averages and algorithm.takes_means
    return first_reason(
        (algorithm.written, f"{name}: what the edges of an algorithm of your own make of replies is not known"),
        (algorithm.adds_gradients, f"{name}, whose clients send gradients"),
        (in_turn, f"{name}, whose clients train one after the other"),
        (not takes_means, f"{name}, whose edges make more of updates than their average"),
        (algorithm.splits and len(set(cuts.items)) > 1, f"cut-layer = {cuts.text!r}: clients' blocks have no average"),
        (case.rule, f"{name} with plans, which go by what single clients tell"),
        (case.out_of_step, f"{case.out_of_step}, where no edge round is everybody's"),
    )


def check_strategies(case: Case) -> None:
    """Refuse strategies that compare single models, or weigh them by what clients tell."""
    if not is_on(case):
        return
    for spec in case.strategies_here:
        if spec.key == case.algorithm.strategy_key and (spec.module or spec.name not in MEANS):
            allowed = f"{', '.join(map(repr, MEANS))} for secure.aggregation = true: all others see single updates"
            raise bad_value(spec.key, spec.text, allowed)


def check_node(case: Case, node_config: Mapping[str, object]) -> None:
    """Refuse, on a client that has keys, runs that do not ask for them: whoever starts a run could leave masks out."""
    has_keys = node_config.get(OWN_KEY) or node_config.get(KNOWN_KEYS)
    if has_keys and not (is_on(case) and case[Secure].signed):
        asked = "secure.aggregation = true and secure.signed = true"
        raise UserError(f"{OWN_KEY} or {KNOWN_KEYS} in the node's config: it takes part in training with {asked} alone")


def without_use(case: Case) -> Unused:
    """Yield all but the switch where it is off."""
    if not case[Secure].aggregation:
        yield [key for key in Secure.own_keys() if key != "secure.aggregation"], "secure.aggregation = false"


def _refused(why: str) -> UserError:
    return bad_value("secure.aggregation", True, f"false for {why}")
