"""The kinds of tasks."""

from espalier.app.ground.object_spec import HUB
from espalier.app.settings.sections import OWN, VIDEO_CACHING, Data
from espalier.app.tasks.adapted import AdaptedTask
from espalier.app.tasks.caching import CachingTask
from espalier.app.tasks.columns import ColumnsTask
from espalier.app.tasks.images import ImageTask
from espalier.app.tasks.own_images import OwnImagesTask
from espalier.app.tasks.task import Task


def task_kind(data: Data) -> type[Task]:
    """Return what kind of task it is, whose traits tell what goes with it; nothing is loaded."""
    if data.task.text:
        return AdaptedTask
    if data.dataset.module == HUB:
        return ColumnsTask  # as a set of images has the same traits
    if data.dataset.text == VIDEO_CACHING:
        return CachingTask
    return OwnImagesTask if data.partition.text == OWN else ImageTask
