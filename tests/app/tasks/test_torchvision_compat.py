import subprocess
import sys

import pytest
import torch


@pytest.fixture(scope="module")
def torchvision():
    """The library, whose import takes seconds."""
    from espalier.app.tasks import torchvision_compat

    return torchvision_compat.torchvision


def test_models_data_sets_and_transforms_are_there(torchvision):
    assert torchvision.models.get_model("resnet18", weights=None, num_classes=3).fc.out_features == 3
    assert torchvision.datasets.CIFAR10.base_folder == "cifar-10-batches-py"
    assert torchvision.transforms.functional.hflip(torch.arange(3)[None]).tolist() == [[2, 1, 0]]


def test_a_fresh_process_imports_it_without_warnings_and_any_import_after_it_works(torchvision):
    code = "import espalier.app.tasks.torchvision_compat, torchvision, torchvision.ops; print(torchvision.__version__)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.strip() == torchvision.__version__
