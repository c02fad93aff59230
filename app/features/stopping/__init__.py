"""Runs that end before their last global round."""

from espalier.app.features.case import Case
from espalier.app.features.feature import Feature, Unused
from espalier.app.settings.sections import Stop


def without_use(case: Case) -> Unused:
    """Yield what has no use where another run says when it ends, or where nothing is tested or planned."""
    of_tests = ("stop.accuracy", "stop.patience")
    if case.deploy.role == "edge":
        yield Stop.own_keys(), "the cloud's run says when it ends"
    if not case.algorithm.has_model:
        yield of_tests, f"algorithm = {case.algorithm.text!r} has no model to test"
    elif not case.report.evaluate_every:
        yield of_tests, "with report.evaluate-every = 0 only the last model is tested"
    if not case.rule:
        yield ("stop.joules",), "no round is planned: see selection"


STOPPING = Feature(name="stopping", without_use=without_use)
