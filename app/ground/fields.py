"""The words of metrics lines and tables, which a client's or a task's own figures can't have."""

from collections.abc import Collection
from typing import Final

# The fields of lines that are the run's own words; a client's metric of such a name is not reported.
FIELDS: Final = frozenset(
    {
        *("round", "scope", "edge", "trained", "participants"),
        *("failures", "edges_left_out", "evaluation_failures", "cloud_failures", "made_no_model"),
        *("plans", "plans_at_work"),
        *("num_clients", "away", "dropped_out"),
        *("clients", "test", "validation", "bytes", "closed_form_bits", "energy_joules", "late_share"),
        *("seconds", "wall_seconds", "simulated_seconds", "async"),
        *("privacy", "privacy-asked", "privacy-of", "privacy-noise", "ends"),
        *("secure", "secure-clients", "secure-error", "secure-clipped"),
    }
)

POOL: Final = "test_"  # before the name of a figure on the whole test pool
OVER_CLIENTS: Final = "_std_over_clients"  # behind the name of a figure whose mean over clients is reported
BEFORE: Final = (
    *(POOL, "personal_", "personalised_", "personalised_validation_"),
    *("best_", f"best_{POOL}", "best_validation_"),
)
# The columns of runs.csv and clients.csv beside figures: settings without a section among them, and sweeps' targets.
COLUMNS: Final = frozenset(
    {
        *("algorithm", "seed", "engine", "device", "stack", "workers", "output-dir", "resume"),
        *("num-clients", "num-edges", "edge-names", "global-rounds", "edge-rounds", "participation"),
        *("cloud-strategy", "edge-strategy", "task", "dataset", "data-dir", "partition", "alpha", "edge-alpha"),
        *("model", "local-epochs", "batches-per-epoch", "batch-size", "optimizer", "learning-rate"),
        *("cut-layer", "tail-layer", "selection", "association"),
        *("case", "rounds", "uplink_bytes", "downlink_bytes", "personalisation_bytes", "best_round"),
        *("simulated_seconds", "compute_joules", "upload_joules", "per_client_round_joules", "late", "spare"),
        *("edge_rounds_without_anybody", "edge_rounds_short", "edge_rounds_unconverged"),
        *("target_reached", "target_rounds", "target_bytes", "target_seconds", "target_joules"),
        *("version", "commit", "machine", "folder"),
        *("client", "train_examples", "test_examples", "classes", "times_left_out", "times_eligible"),
        *("times_eligible_at_full_power", "times_selected", "times_late"),
        *("training_seconds", "waiting_seconds", "transfer_seconds"),
    }
)


def columns_beside(figures: Collection[str]) -> set[str]:
    """Return the columns that tables may have of figures of these names beside those of that name."""
    beside = {before + name for name in figures for before in BEFORE}
    return beside | {name + OVER_CLIENTS for name in beside.union(figures)}
