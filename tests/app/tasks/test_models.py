import pytest
import torch
from torch import nn

from espalier.app.ground.errors import UserError
from espalier.app.tasks.models import MODELS, build_model, parameter_counts

SHAPES = {"small-cnn": (1, 8, 8)} | dict.fromkeys(("cnn", "resnet18", "resnet18-imagenet", "resnet50"), (3, 32, 32))
CNN_BLOCKS = ["conv1", "conv2", "fc1", "head"]
RESNET_BLOCKS = ["stage1", "stage2", "stage3", "stage4", "head"]


def build(name, seed=0, num_classes=10, shape=None):
    return build_model(name, image_shape=shape or SHAPES[name], num_classes=num_classes, seed=seed)


def bits(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def batch(name, seed=0):
    return torch.randn(2, *SHAPES[name], generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", MODELS)
def test_blocks_run_one_by_one_give_what_the_whole_model_gives(name):
    model = build(name, num_classes=7).eval()
    assert isinstance(model, nn.Sequential)
    assert [block for block, _ in model.named_children()] == (
        RESNET_BLOCKS if name.startswith("resnet") else CNN_BLOCKS
    )
    assert type(model.head) is nn.Linear
    with torch.no_grad():
        x = batch(name)
        for block in model.children():
            x = block(x)
        assert x.shape == (2, 7)
        assert torch.equal(x, model(batch(name)))


@pytest.mark.parametrize("name", MODELS)
def test_a_cut_between_any_two_blocks_gives_the_gradients_of_the_whole_model(name):
    x, labels = batch(name), torch.tensor([1, 2])
    whole = build(name)
    nn.functional.cross_entropy(whole(x), labels).backward()
    for cut in range(1, len(whole)):
        model = build(name)
        cut_values = model[:cut](x)
        received = cut_values.detach().requires_grad_()
        nn.functional.cross_entropy(model[cut:](received), labels).backward()
        cut_values.backward(received.grad)
        for one, other in zip(whole.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(other.grad, one.grad)


def test_the_second_block_of_cnn_ends_in_512_values_for_cifar_images():
    model = build("cnn")
    assert model.conv1(batch("cnn")).shape == (2, 64, 8, 8)
    assert model[:2](batch("cnn")).shape == (2, 512)
    assert (model.fc1[0].in_features, model.fc1[0].out_features) == (512, 256)


@pytest.mark.parametrize(
    ("name", "shape", "flat"),
    [
        ("cnn", (1, 28, 28), 128),
        ("cnn", (3, 16, 47), 256),
        ("cnn", (3, 64, 64), 2048),
        ("small-cnn", (3, 9, 15), 192),
        ("small-cnn", (1, 28, 28), 1568),
    ],
)
def test_other_image_sizes_change_the_flattened_size(name, shape, flat):
    model = build(name, shape=shape)
    assert model[:2](torch.zeros(1, *shape)).shape == (1, flat)
    assert model(torch.zeros(1, *shape)).shape == (1, 10)


def test_residual_stages_keep_the_size_of_small_images_until_the_second():
    model = build("resnet18")
    x, shapes = batch("resnet18"), []
    for block in model.children():
        x = block(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512,), (10,)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 3x3 weights per pair of channels and one bias per channel; weights and biases of linear layers
        ("small-cnn", {"conv1": 16 * 10, "conv2": 32 * (16 * 9 + 1), "fc1": 64 * 129, "head": 10 * 65}),
        ("cnn", {"conv1": 64 * 28, "conv2": 128 * (64 * 9 + 1), "fc1": 256 * 513, "head": 10 * 257}),
        # each stage: its convolutions (no bias), then two values per channel of each batch norm
        (
            "resnet18",
            {
                "stage1": 9 * 3 * 64 + 2 * 64 + 4 * 9 * 64 * 64 + 4 * 2 * 64,
                "stage2": 9 * 128 * (64 + 3 * 128) + 64 * 128 + 5 * 2 * 128,
                "stage3": 9 * 256 * (128 + 3 * 256) + 128 * 256 + 5 * 2 * 256,
                "stage4": 9 * 512 * (256 + 3 * 512) + 256 * 512 + 5 * 2 * 512,
                "head": 10 * 513,
            },
        ),
    ],
)
def test_parameters_are_counted_by_block(name, expected):
    assert parameter_counts(build(name)) == expected


def test_resnets_have_the_known_number_of_parameters():
    assert sum(parameter_counts(build("resnet18")).values()) == 11_173_962
    assert sum(parameter_counts(build("resnet18-imagenet")).values()) == 11_181_642
    assert sum(parameter_counts(build("resnet50")).values()) == 23_520_842


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_decides_every_bit_and_the_global_generator_is_left_alone(name):
    before = torch.random.get_rng_state()
    first, same, other = bits(build(name, seed=1)), bits(build(name, seed=1)), bits(build(name, seed=2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_unknown_models_and_images_that_are_too_small_are_refused():
    with pytest.raises(UserError, match="model = 'vgg': allowed is 'auto', 'small-cnn', 'cnn', 'resnet18', "):
        build("vgg", shape=(3, 32, 32))
    with pytest.raises(UserError) as caught:
        build("cnn", shape=(1, 8, 15))
    assert str(caught.value) == ("model = 'cnn': allowed is small-cnn for images of 15x8 (cnn: 16x16 or more)")
    with pytest.raises(UserError, match="allowed is none for images of 7x9"):
        build("small-cnn", shape=(1, 9, 7))
