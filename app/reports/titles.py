"""What pictures call a run, and how its data are shared out."""

from espalier.app.settings.sections import VIDEO_CACHING, Data


def picture_title(algorithm: str, data: Data, num_clients: int, seed: int) -> str:
    """Return the title of a run's pictures: algorithm, data, how these are shared out, clients and seed."""
    parts = [algorithm, data.title, shared_out(data), f"{num_clients} clients", f"seed {seed}"]
    return ", ".join(filter(None, parts))


def shared_out(data: Data) -> str:
    """Return how data are shared out; nothing of those that clients bring."""
    if data.task.text or data.dataset.text == VIDEO_CACHING:
        return ""
    scheme = data.partition.text
    if scheme == "edge-dirichlet":
        return f"Dir({data.edge_alpha:g}) over edges, Dir({data.alpha:g}) within"
    if scheme == "iid-in-edges":
        return f"Dir({data.edge_alpha:g}) over edges, iid within"
    return dirichlet(scheme, data.alpha) if scheme.startswith("dirichlet") else scheme


def dirichlet(scheme: str, alpha: float) -> str:
    """Return a Dirichlet partition over clients in short."""
    return f"Dir({alpha:g}){scheme.removeprefix('dirichlet').replace('-', ' ')}"
