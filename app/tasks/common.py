"""What all tasks take from a run config."""

import os
from collections.abc import Callable

import torch
import torch.utils.deterministic

from espalier.app.ground.errors import bad_value
from espalier.app.settings.sections import TrainSettings
from espalier.clients.shared.arithmetic import Arithmetic
from espalier.clients.task import ClientTask, LocalTraining


def compute_device(device: str) -> torch.device:
    """Return the device that `device` names; "auto" takes a GPU where there is one."""
    if device == "cuda" and not torch.cuda.is_available():
        raise bad_value("device", "cuda", "'cpu' or 'auto': torch finds no GPU here")
    return torch.device("cpu" if device == "cpu" or not torch.cuda.is_available() else "cuda")


def set_up_torch(device: str, threads: int, precision: str = "float32") -> None:
    """Let torch compute in this process as the config says: with its threads, and with the same bits each time.

    A GPU would otherwise add in the order in which its threads come, and round inputs of convolutions to TF32's 10
    bits. An operation that can't be made to repeat its bits there is warned of.

    Raises
    ------
    UserError
        If `device` names a GPU and there is none, or `precision` needs one.
    """
    torch.set_num_threads(threads)
    on_gpu = compute_device(device).type == "cuda"
    if precision == "tf32" and not on_gpu:
        raise bad_value("train.precision", precision, "'float32' or 'bfloat16' without a GPU")
    torch.set_deterministic_debug_mode("warn" if on_gpu else "default")
    if on_gpu:
        # cuBLAS reads it when it is first used, and repeats its bits only with one of these workspaces.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        rounds = "tf32" if precision == "tf32" else "ieee"
        torch.backends.cudnn.conv.fp32_precision = rounds  # type: ignore[attr-defined]
        torch.backends.cuda.matmul.fp32_precision = rounds


def room_for_examples(device: torch.device) -> int:
    """Return how many bytes of examples a device may keep: half of a GPU's free memory; the rest is to train in."""
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else 0


def on_device_if_it_fits(task: ClientTask, room_bytes: int) -> tuple[ClientTask, int]:
    """Return a client's task with its examples on its device if there is room for them, and what is left of it."""
    needed = task.num_bytes
    return (task.on_device(), room_bytes - needed) if needed <= room_bytes else (task, room_bytes)


def local_training(train: TrainSettings, schedule: Callable[[float, int], float] | None = None) -> LocalTraining:
    """Return how a client trains, with the learning rates of a schedule."""
    return LocalTraining(
        local_epochs=train.local_epochs,
        batches_per_epoch=train.batches_per_epoch,
        batch_size=train.batch_size,
        optimizer=train.optimizer,
        learning_rate=train.learning_rate,
        momentum=train.momentum,
        weight_decay=train.weight_decay,
        drop_last=train.drop_last,
        schedule=schedule,
        arithmetic=Arithmetic(train.precision == "bfloat16", train.channels_last),
    )
