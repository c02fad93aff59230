"""What pictures call a run, and how its data are shared out."""

from espalier.app.settings.sections import VIDEO_CACHING, Data
from espalier.app.tasks.schemes import in_words


def picture_title(algorithm: str, data: Data, num_clients: int, seed: int) -> str:
    """Return the title of a run's pictures: algorithm, data, how these are shared out, clients and seed."""
    brings_data = data.task.text or data.dataset.text == VIDEO_CACHING  # and shares them out
    partition = "" if brings_data else in_words(data.partition.text, data.as_dict())
    parts = [algorithm, data.title, partition, f"{num_clients} clients", f"seed {seed}"]
    return ", ".join(filter(None, parts))
