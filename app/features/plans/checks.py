"""What does not go together with plans, and what has no use there."""

from espalier.app.features.case import Case
from espalier.app.features.feature import Unused
from espalier.app.ground.errors import bad_value
from espalier.app.ground.reasons import first_reason, unused
from espalier.app.planning.build import radio_trace
from espalier.app.planning.limits import check_cell_size
from espalier.app.planning.rule import PlanRule, kind_of
from espalier.app.planning.solving import solver_of
from espalier.app.settings.section import Tag
from espalier.app.settings.sections import SOLVERS, Plans, RadioWorld

# The keys of what a solver may ignore, by its name in a `Problem`.
KEYS = {
    "theta": ("plan.theta",),
    "min_frequency_hz": ("plan.min-frequency-hz",),
    "max_overlap": ("plan.max-overlap",),
    "worth": ("plan.value", "plan.value-weight"),
}


def clients_walk(case: Case) -> bool:
    """Return whether clients of the radio world move to other edges, as they walk."""
    return bool(case.rule and case.plan.resources == "simulated" and case.radio.speed_metres_per_second)


def check(case: Case) -> None:
    """Refuse plans where nobody trains, or that other settings do not suit."""
    plan, rule, algorithm = case.plan, case.rule, case.algorithm
    if not algorithm.trains_clients and plan.selection != "everybody":
        raise bad_value("selection", plan.selection, f"'everybody': {algorithm.name} trains no clients")
    if rule:
        _check_plans(case, rule)
    elif plan.resources == "measured":
        allowed = "'simulated', or selection = 'resource-aware', or an algorithm with plans, such as 'rawhfl'"
        raise bad_value("plan.resources", plan.resources, allowed)
    if rule and rule.over_all_cells and not (case.here.is_whole or case.is_flat):
        role = f"deploy.role = {case.deploy.role!r}"
        allowed = f"another one for {role}: its plans need the clients of all edges at once"
        raise bad_value("algorithm", algorithm.text, allowed)


def check_files(case: Case) -> None:
    """Refuse a trace that is none."""
    if case.rule and case.plan.resources == "simulated":
        radio_trace(case.plan, case.radio, case.federation.num_clients, case.cells, case.edge_rounds_in_all)


def check_moves(case: Case) -> str:
    """Return why clients can't move between edges; nothing if they can."""
    if not case.rule or not case.rule.selects_a_number:
        return ""
    plan, kind, seen = case.plan, kind_of(case.plan.solver), "an edge knows what it has seen of a client alone"
    return first_reason(
        (plan.battery_joules, f"plan.battery-joules = {plan.battery_joules}: an edge knows what is spent there alone"),
        (plan.value.text != "uniform", f"plan.value = {plan.value.text!r}: {seen}"),
        (kind and kind.looks_back, f"plan.solver = {plan.solver.text!r}: {seen}"),
    )


def _check_plans(case: Case, rule: PlanRule) -> None:
    """Refuse what does not go together with plans, or with cells of this size."""
    if case.federation.participation != 1.0:
        raise bad_value(
            "participation", case.federation.participation, "1.0: plans select the clients (plan.selected-per-edge)"
        )
    if case.algorithm.in_turn(case.split):
        raise bad_value("selection", case.plan.selection, "'everybody': here clients train one after the other")
    if case.algorithm.auxiliary:
        allowed = (
            f"'everybody': plans count a gradient for all activations, and in {case.algorithm.name} none comes back"
        )
        raise bad_value("selection", case.plan.selection, allowed)
    if case.algorithm.splits and not case.plan.solver.module and case.plan.solver.name == "sca":
        allowed = ", ".join(repr(name) for name in SOLVERS if name != "sca")
        allowed += " for split training, where uploads grow with rounds"
        raise bad_value("plan.solver", case.plan.solver.text, allowed)
    if not case.plan.solver.module:
        solver_of(case.plan.solver)  # refuses parameters that it does not take
    kind = kind_of(case.plan.solver)
    if kind and kind.by_accuracy and rule.selects_a_number:
        by_accuracy = f"more than 0 for plan.solver = {case.plan.solver.text!r}, which goes by clients' accuracies"
        for key in ("report.evaluate-every", "report.evaluate-clients"):
            if not (given := case.report.as_dict()[key]):
                raise bad_value(key, given, by_accuracy)
    if case.algorithm.splits and len(set(case.split.cut_layer.items)) > 1:
        raise bad_value("cut-layer", case.split.cut_layer.text, "one cut, or 'best', with selection = 'resource-aware'")
    if case.plan.value.text == "battery" and not case.plan.battery_joules:
        raise bad_value("plan.value", "battery", "'battery' with plan.battery-joules above 0")
    if case.cells > case.federation.num_clients:
        raise bad_value("num-edges", case.cells, f"at most num-clients = {case.federation.num_clients}")
    check_cell_size(case.plan, rule, case.federation.num_clients // case.cells)
    _check_devices(case)


def _check_devices(case: Case) -> None:
    """Refuse simulated devices that can't be, and such where devices tell what they are."""
    if case.plan.resources == "measured":
        for name in case.radio.tagged(Tag.DEVICE):
            default = getattr(RadioWorld(), name)
            if (given := getattr(case.radio, name)) != default:
                allowed = f"{default.text!r} for plan.resources = 'measured': each node's config sets it"
                raise bad_value(RadioWorld.keys()[name], given.text, allowed)
        return
    lowest = case.radio.device_ranges["max_frequency_hz"][0]
    if case.plan.min_frequency_hz > lowest:
        allowed = (
            f"0 to {lowest:g}, the least that radio.max-frequency-hz = {case.radio.max_frequency_hz.text!r} allows"
        )
        raise bad_value("plan.min-frequency-hz", case.plan.min_frequency_hz, allowed)


def without_use(case: Case) -> Unused:
    """Return what has no use without plans, or by the rule, the solver, the value and the kind of resources."""
    rule, plan, radio_keys = case.rule, case.plan, RadioWorld.own_keys()
    if not rule:
        return [((*Plans.own_keys(), *radio_keys), "no round is planned: see selection")]
    name, by_solver = f"algorithm = {case.algorithm.text!r}", f"plan.solver = {plan.solver.text!r}"
    kind, selecting, measured = kind_of(plan.solver), Plans.keys_tagged(Tag.SELECTS), plan.resources == "measured"
    ignored = [key for name in kind.ignores for key in KEYS[name]] if kind else []
    all_answer = "plan.resources = 'measured': an edge waits for all whom it selects, or the deadline"
    no_error = "plan.resources = 'measured': the error of measured links is not known"
    of_limits = ("plan.margin", "plan.late-share", "plan.divide-by-arrived")
    nobody_walks = not (rule.has_limits or clients_walk(case))
    return unused(
        (rule.solver, selecting, f"{name} has a rule of its own"),
        (rule.any_number, [key for key in selecting if key != "plan.solver"], by_solver),
        (rule.selects_a_number, ignored, by_solver),
        (not plan.value.module and plan.value.name == "uniform", ("plan.value-weight",), "plan.value = 'uniform'"),
        (not rule.has_limits, of_limits, f"{name} keeps no deadline"),
        # Where it is not given it is as many, see `espalier.app.config.defaults.with_defaults`.
        (plan.max_local_rounds != case.train.local_epochs, ("local-epochs",), "plan.max-local-rounds says how many"),
        (nobody_walks, ("plan.deadline-seconds",), f"{name} keeps no deadline, and nobody walks"),
        (not case.algorithm.adds_gradients, ("plan.divide-by-arrived",), f"edges of {name} add up no gradients"),
        (measured, radio_keys, "plan.resources = 'measured': links are measured"),
        (measured, ("plan.spare",), all_answer),
        (measured, ("plan.late-share",), no_error),
        (not case.radio.planning_error_db, ("plan.late-share",), "with radio.planning-error-db = 0.0 nobody is late"),
    )
