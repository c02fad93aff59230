"""The lines of ``metrics.jsonl`` and what follows from them."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from espalier.app.features.table import FEATURES
from espalier.app.ground.fields import FIELDS
from espalier.app.ground.figures import figure_names, finite, is_number, spread, spreads_of
from espalier.app.meters.bytes import EVALUATION, Link, by_edge, nested
from espalier.app.meters.seconds import OfEdge
from espalier.app.reports.best import best_line
from espalier.clients.messages.train import ACCURACY, LOSS, NUM_EXAMPLES, NUM_VALIDATION, PERSONAL, TOP, VALIDATION
from espalier.strategies import Evaluation, Failure, Round
from espalier.strategies.exchange import DROPPED_OUT, is_late
from espalier.strategies.split import Personalised

Line = dict[str, Any]


def edge_lines(outcome: Round, counts: Counter[Link], client_of: Mapping[int, int]) -> list[Line]:
    """Return a line per edge for a global round.

    Parameters
    ----------
    outcome : Round
        The round.
    counts : Counter[Link]
        Bytes of what came in in the round.
    client_of : Mapping[int, int]
        Client number (partition id) by node id.
    """
    lines = []
    of_edge = by_edge(counts)
    for name, edge in outcome.edges.items():
        evaluation = outcome.evaluations.get(name, Evaluation())
        failures = [
            {"edge_round": e, **_failure(failure, client_of)}
            for e, update in enumerate(edge.updates, start=1)
            for failure in update.failures
        ]
        failures += [{"evaluation": True, **_failure(failure, client_of)} for failure in evaluation.failures]
        lines.append(
            {
                "round": outcome.number,
                "scope": "edge",
                "edge": name,
                "trained": any(u.arrays is not None and (u.participants or not u.failures) for u in edge.updates),
                "participants": [[client_of[node_id] for node_id in update.participants] for update in edge.updates],
                "failures": failures,
                **reported(trained(edge.metrics)),
                **reported(of_test_sets(evaluation.metrics or {})),
                "bytes": nested(of_edge.get(name, {})),
                "seconds": round(edge.seconds, 4),
            }
        )
    return lines


def in_digits(figure: float) -> str:
    """Return a figure with four decimals, a larger one with six digits, and a loss of 10^24, say, with three."""
    return f"{figure:.4f}" if abs(figure) < 100 else f"{figure:.{6 if abs(figure) < 1e6 else 3}g}"


def global_line(
    outcome: Round,
    counts: Counter[Link],
    client_of: Mapping[int, int],
    test: Mapping[str, float] | None,
    closed_form_bits: Mapping[str, float] | None,
    wall_seconds: float,
) -> Line:
    """Return the global line of a round.

    Parameters
    ----------
    outcome, client_of
        As in `edge_lines`.
    counts : Counter[Link]
        Bytes of the round, those of edges still at work among them.
    test : Mapping[str, float], optional
        Loss, accuracy and what else the task measures, on the whole test pool; None in a round without evaluation.
    closed_form_bits : Mapping[str, float], optional
        What the formula gives for a client and edge round, see `espalier.app.reports.closed_form`; None if nothing is
        split.
    wall_seconds : float
        Wall time of the run so far.
    """
    line: Line = {"round": outcome.number, "scope": "global", **reported(trained(outcome.train_metrics or {}))}
    names = figure_names(test)
    clients: dict[int, Mapping[str, Any]] = {
        client_of[node_id]: metrics
        for evaluation in outcome.evaluations.values()
        for node_id, metrics in evaluation.replies.items()
        if is_evaluation(metrics)
    }
    if clients:
        line |= spreads_of(clients.values(), names)
        line["clients"] = {str(i): finite(clients[i]) for i in sorted(clients)}
        line |= personal_of(clients.values(), names)
    if test is not None:
        line["test"] = finite(test)
    failures = sum(len(update.failures) for edge in outcome.edges.values() for update in edge.updates)
    failures += sum(len(evaluation.failures) for evaluation in outcome.evaluations.values())
    failures += len(outcome.failures)
    without_line = [
        {"edge": name, **_failure(failure, client_of)}
        for name, evaluation in outcome.evaluations.items()
        if name not in outcome.edges
        for failure in evaluation.failures
    ]
    line |= {
        "failures": failures,
        "edges_left_out": [name for name, edge in outcome.edges.items() if edge.arrays is None],
        **({"evaluation_failures": without_line} if without_line else {}),
        **({} if outcome.is_new else {"made_no_model": True}),
        **({"cloud_failures": [failure.reason for failure in outcome.failures]} if outcome.failures else {}),
        "bytes": nested(counts),
        **({"closed_form_bits": dict(closed_form_bits)} if closed_form_bits else {}),
        "seconds": round(outcome.seconds, 4),
        "wall_seconds": round(wall_seconds, 4),
    }
    return line


def seconds_line(number: int, edges: Mapping[str, OfEdge]) -> Line:
    """Return a round's line of ``seconds.jsonl``: how long clients and edges took, by client number and edge name."""
    clients = {
        client: {"edge": name, **seconds.as_data()}
        for name, own in edges.items()
        for client, seconds in own.clients.items()
    }
    return {
        "round": number,
        "scope": "seconds",
        "clients": {str(client): clients[client] for client in sorted(clients)},
        "edges": {name: own.edge.as_data() for name, own in edges.items()},
    }


NOBODY_TRAINED = "no client trained"


def why_no_model(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return why no round gave a model; nothing where clients trained in one, and the cloud made a model in one."""
    if not any(line.get("trained") for line in lines):
        return NOBODY_TRAINED
    rounds = [line for line in lines if line["scope"] == "global"]
    return "" if any(not line.get("made_no_model") for line in rounds) else "the cloud made no model"


def nobody_could_train(lines: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether no client trained for no fault of one: plans left nobody, all were away, dropped out or late."""
    faults = (own for line in lines if line["scope"] == "edge" for own in line["failures"])
    of_training = (own["reason"] for own in faults if own["client"] is not None and "evaluation" not in own)
    excused = all(is_late(reason) or reason == DROPPED_OUT for reason in of_training)
    return excused and not any(line.get("trained") for line in lines)


def failures_of(line: Mapping[str, Any]) -> Sequence[Line]:
    """Return what failed, by client, as far as this line names it."""
    if line["scope"] in ("edge", "personalised"):
        return list(line["failures"])
    return list(line.get("evaluation_failures", ()))


def validation_of(evaluations: Iterable[Evaluation | Personalised], test: Mapping[str, float] | None = None) -> Line:
    """Return ``validation``: the spread of figures over those clients that hold examples back, and their number.

    Nothing where nobody was evaluated.

    Parameters
    ----------
    evaluations : Iterable[Evaluation | Personalised]
        Of all edges.
    test : Mapping[str, float], optional (default: None)
        As of `figure_names`.
    """
    names = {name: VALIDATION + name for name in figure_names(test)}
    replies: list[Mapping[str, Any]] = [
        metrics
        for evaluation in evaluations
        for metrics in (evaluation.replies if isinstance(evaluation, Evaluation) else evaluation.metrics).values()
    ]
    own = [metrics for metrics in replies if metrics.get(NUM_VALIDATION) and is_number(metrics.get(VALIDATION + LOSS))]
    if not own:
        return {}
    spreads = spreads_of(own, list(names.values()))
    return {"validation": {**{name: spreads[key] for name, key in names.items()}, "clients": len(own)}}


def of_test_sets(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an edge's metrics without those of examples held back, which an average by test examples does not suit."""
    if NUM_VALIDATION not in metrics:
        return metrics
    return {
        name: value for name, value in metrics.items() if name != NUM_VALIDATION and not name.startswith(VALIDATION)
    }


def personal_of(clients: Iterable[Mapping[str, Any]], names: Sequence[str]) -> Line:
    """Return ``personal``: the spread of figures over clients' own models; nothing where clients have none."""
    own = [metrics for metrics in clients if is_number(metrics.get(PERSONAL + LOSS))]
    spreads = spreads_of(own, [PERSONAL + name for name in names])
    return {"personal": {name: spreads[PERSONAL + name] for name in names}} if own else {}


def personalised_line(
    number: int,
    results: Mapping[str, Personalised],
    counts: Counter[Link],
    client_of: Mapping[int, int],
    test: Mapping[str, float] | None = None,
    *,
    validates: bool = False,
) -> Line:
    """Return the line of the personalisation after the last round.

    Parameters
    ----------
    number : int
        The last round.
    results : Mapping[str, Personalised]
        By edge.
    counts, client_of
        As in `edge_lines`.
    test : Mapping[str, float], optional (default: None)
        As of `figure_names`.
    validates : bool (default: False)
        Clients tell figures of examples that they hold back, too.
    """
    names = figure_names(test)
    clients: dict[int, Mapping[str, Any]] = {
        client_of[node_id]: metrics
        for result in results.values()
        for node_id, metrics in result.metrics.items()
        if is_evaluation(metrics)
    }
    line: Line = {"round": number, "scope": "personalised"}
    if clients:
        line |= spreads_of(clients.values(), names)
    line["clients"] = {str(i): finite(clients[i]) for i in sorted(clients)}
    if validates:
        line |= validation_of(results.values(), test)
    line["failures"] = [_failure(failure, client_of) for result in results.values() for failure in result.failures]
    return line | {"bytes": nested(counts)}


def summarise(lines: Sequence[Line]) -> Line:
    """Return the final figures of a run, the content of ``summary.json``.

    ``bytes`` counts what training sends; what evaluations send besides is in ``bytes_by_kind``. Figures are of the last
    model: none where it was not evaluated.
    """
    rounds, tuned = ([line for line in lines if line["scope"] == scope] for scope in ("global", "personalised"))
    last, names = last_round(lines), names_of_figures(lines)
    totals, by_kind = _bytes_of(rounds)
    summary: Line = {
        "rounds": rounds[-1]["round"] if rounds else 0,
        "global": {key: last.get(key) for key in names},
        "global_round": next((line["round"] for line in reversed(rounds) if "clients" in line), None),
        "test": last.get("test"),
        "bytes": totals,
        "bytes_by_kind": by_kind,
        "failures": sum(line["failures"] for line in rounds) + sum(len(line["failures"]) for line in tuned),
        # An edge round in which nobody could be asked has no reply that could be left out.
        "replies_left_out": sum(one["client"] is not None for line in lines for one in failures_of(line)),
        "wall_seconds": rounds[-1]["wall_seconds"] if rounds else 0.0,
    }
    for feature in FEATURES:
        summary |= feature.summary(lines)
    if "personal" in last:
        summary["personal"] = last["personal"]
    if tops := top_m(last.get("clients", {})):
        summary["top_m"] = tops
    if best := best_line(rounds):
        figures = {"global": {key: best.get(key) for key in names}, "test": best.get("test")}
        summary["best"] = {"round": best["round"], "validation": best["validation"], **figures}
    for line in tuned:
        summary["personalised"] = {key: line.get(key) for key in names}
        summary["personalisation_bytes_by_kind"] = line["bytes"]
        if "validation" in line:
            summary["personalised_validation"] = line["validation"]
    return summary


def _bytes_of(rounds: Sequence[Line]) -> tuple[Line, Line]:
    """Return the bytes of all rounds: by direction and tier, without evaluations, and by tier, direction and kind."""
    totals: Line = {"uplink": {}, "downlink": {}}
    by_kind: Line = {}
    for line in rounds:
        for tier, directions in line["bytes"].items():
            for direction, kinds in directions.items():
                of_training = sum(count for kind, count in kinds.items() if kind != EVALUATION)
                totals[direction][tier] = totals[direction].get(tier, 0) + of_training
                sums = by_kind.setdefault(tier, {}).setdefault(direction, {})
                sums |= {kind: sums.get(kind, 0) + count for kind, count in kinds.items()}
    return totals, by_kind


def last_round(lines: Sequence[Line]) -> Line:
    """Return the global line of the last round, an empty one where there is none."""
    return next((line for line in reversed(lines) if line["scope"] == "global"), {})


def names_of_figures(lines: Sequence[Line]) -> list[str]:
    """Return what models are judged by in a run, see `figure_names`."""
    tests = (line["test"] for line in reversed(lines) if line["scope"] == "global" and "test" in line)
    return figure_names(next(tests, None))


def lacks_figures(summary: Mapping[str, Any]) -> str:
    """Return in a line that a run has no figures over clients, and since when; an empty text where it has."""
    rounds, last = summary["rounds"], summary.get("global_round", summary["rounds"])
    if last == rounds:
        return ""
    if last is None:
        return "no client was evaluated after any round: figures over clients are none"
    none = f"no client was evaluated after round {rounds}: figures over clients are none"
    return f"{none}, the last ones are of round {last}"


def top_m(clients: Mapping[str, Line]) -> dict[str, dict[str, float | None]]:
    """Return the spread over clients of their top-M accuracies, by M; nothing where a task has none.

    Parameters
    ----------
    clients : Mapping[str, dict]
        The clients' metrics of one evaluation.
    """
    found = {re.fullmatch(rf"{TOP}([0-9]{{1,4}})", key) for own in clients.values() for key in own}
    numbers = sorted({int(match[1]) for match in found if match})
    shares = {m: [own.get(f"{TOP}{m}") for own in clients.values()] for m in numbers}
    return {str(m): spread([v if is_number(v) else math.nan for v in values]) for m, values in shares.items()}


def is_evaluation(metrics: Mapping[str, Any]) -> bool:
    """Return whether these are a client's metrics of an evaluation, on one example at least, with the loss.

    Without any it would count as always wrong. The only client of an edge has no others that its reply has to be like,
    so that anything can be in it.
    """
    return metrics.get(NUM_EXAMPLES) != 0 and is_number(metrics.get(LOSS))


def trained(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return training metrics by names that are not those of the evaluation."""
    renamed = {f"train_{name}": metrics[name] for name in (ACCURACY, LOSS) if name in metrics}
    return renamed | {name: value for name, value in metrics.items() if name not in (ACCURACY, LOSS)}


def reported(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of clients that a line can hold beside its own fields, as `finite` does."""
    return {k: v for k, v in finite(metrics).items() if k not in FIELDS}


def _failure(failure: Failure, client_of: Mapping[int, int]) -> dict[str, Any]:
    return {"client": client_of.get(failure.node_id), "reason": failure.reason}
