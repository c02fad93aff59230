"""Runs that end before their last global round."""

from espalier.app.features.case import Case
from espalier.app.features.feature import Feature, Unused
from espalier.app.ground.reasons import unused
from espalier.app.settings.sections import Stop


def without_use(case: Case) -> Unused:
    """Return what has no use where another run says when it ends, or where nothing is tested or planned."""
    of_tests, no_model = ("stop.accuracy", "stop.patience"), f"algorithm = {case.algorithm.text!r} has no model to test"
    return unused(
        (not case.here.has_cloud, Stop.own_keys(), "the cloud's run says when it ends"),
        (not case.algorithm.has_model, of_tests, no_model),
        (not case.report.evaluate_every, of_tests, "with report.evaluate-every = 0 only the last model is tested"),
        (not case.rule, ("stop.joules",), "no round is planned: see selection"),
    )


STOPPING = Feature(name="stopping", without_use=without_use)
