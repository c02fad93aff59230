"""The words of metrics lines, which a client's or a task's own figures can't have."""

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
    }
)
