"""What a run decides of its settings, once: who trains side by side, and whose gradients are recorded."""

from espalier.app.features.case import Case


def stack_in_use(config: Case) -> int:
    """Return how many clients train side by side: ``stack``, and 0 where that has no effect."""
    return 0 if why_not_stacked(config) else config.stack


def records_gradients(config: Case) -> bool:
    """Return whether GPUs record gradients: ``train.cuda-graph``, and False where that has no effect."""
    return config.train.cuda_graph and not why_not_recorded(config)


def why_not_stacked(config: Case) -> str:
    """Return why clients can't train side by side in the run; nothing if they can."""
    algorithm, split = config.algorithm, config.split
    by_messages = split.execution == "messages" or split.transport == "stream"
    if config.engine == "flower":
        return "engine = 'flower' runs every client by itself"
    if config.has_clients_in_workers:
        return no_edge_in_a_worker(config)
    if algorithm.splits and (algorithm.shares_server or by_messages or not split.tail_layer.is_none):
        return "side by side train whole models, and in SFL-V1, HSFL and PHSFL halves by fused steps"
    return "" if algorithm.trains_clients else f"algorithm = {algorithm.text!r} trains no clients"


def why_not_recorded(config: Case) -> str:
    """Return why no gradients are recorded in the run, whatever is asked for; nothing if they can be."""
    if config.device == "cpu":
        return "device = 'cpu'"
    if config.deploy.role == "cloud":
        return "deploy.role = 'cloud' trains nobody"
    if config.algorithm.splits:
        return f"algorithm = {config.algorithm.text!r} trains no whole model"
    return f"stack = {config.stack}: clients train side by side" if stack_in_use(config) else ""


def no_edge_in_a_worker(config: Case) -> str:
    """Return why single clients, not edges, are run by Ray's workers, where that is so."""
    if config.is_flat:
        return f"algorithm = {config.algorithm.text!r} has no edges that engine = 'ray' could run as a whole"
    return "where clients move, or edges do not wait for them, engine = 'ray' runs no edge as a whole"
