"""A model's blocks compute what the model computes, or a line says what is in the way."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

from espalier.clients.cutting.blocks import blocks_of, original_names, outputs_of
from espalier.clients.shared.cut import copied
from espalier.strategies.split.shapes import cut_shapes

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
IDS = torch.arange(12).view(2, 6) + 5


def same_as_whole(module, blocks, inputs):
    """Assert that output, gradients and statistics are the same to the bit, in evaluation and in training."""
    names = original_names(blocks, module)
    for is_training in (False, True):
        whole, parts = copy.deepcopy(module).train(is_training), copied(blocks).train(is_training)
        torch.manual_seed(1)
        expected = outputs_of(whole(inputs))[0]
        torch.manual_seed(1)
        found = parts(inputs)
        assert torch.equal(found, expected)
        expected.square().sum().backward()
        found.square().sum().backward()
        gradients = {name: weight.grad for name, weight in whole.named_parameters()}
        for name, weight in parts.named_parameters():
            assert weight.grad is not None
            assert torch.equal(weight.grad, gradients[names[name]]), name
        state = whole.state_dict()
        assert all(torch.equal(values, state[names[name]]) for name, values in parts.state_dict().items())
    assert sorted(names.values()) == sorted(module.state_dict())


def models():
    """Torchvision's, whose import takes seconds."""
    from espalier.app.tasks.torchvision_compat import torchvision

    return torchvision.models


def vit(**options):
    return models().VisionTransformer(
        image_size=32, patch_size=8, num_layers=3, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=5, **options
    )


MODELS = {
    "resnet18": (lambda: models().resnet18(num_classes=5), ("layer1", "layer2.1", "fc")),
    "mobilenet": (lambda: models().mobilenet_v2(num_classes=5), ("features.3", "features.9", "classifier.1")),
    "efficientnet": (
        lambda: models().efficientnet_b0(num_classes=5),
        ("features.2", "features.4.1", "classifier.1"),
    ),
    "vit": (lambda: vit(dropout=0.1), ("encoder.layers.encoder_layer_1", "heads.head")),
}


@pytest.mark.parametrize("name", MODELS)
def test_blocks_of_torchvisions_models_compute_what_they_compute(name):
    build, at = MODELS[name]
    dtype = torch.float32 if name == "vit" else torch.float64
    torch.manual_seed(0)
    module = build().to(dtype)
    blocks = blocks_of(module, at)
    assert [name for name, _ in blocks.named_children()] == [
        "stem",
        *(path.replace(".", "_") for path in at[:-1]),
        "head",
    ]
    assert isinstance(blocks.head, nn.Linear)
    assert all(part.training for part in module.modules())
    same_as_whole(module, blocks, IMAGES.to(dtype))
    assert set(cut_shapes(blocks, (3, 32, 32))) == set(range(1, len(blocks)))


def test_weights_have_the_names_of_the_model_behind_their_blocks_and_are_shared():
    module = MODELS["resnet18"][0]()
    blocks = blocks_of(module, ("layer1", "layer2.1", "fc"))
    names = original_names(blocks, module)
    assert names["stem.bn1.running_mean"] == "bn1.running_mean"
    assert names["layer2_1.layer2.1.conv1.weight"] == "layer2.1.conv1.weight"
    assert names["layer2_1.layer4.0.conv1.weight"] == "layer4.0.conv1.weight"
    assert names["head.weight"] == "fc.weight"
    blocks.load_state_dict({name: torch.ones_like(values) for name, values in blocks.state_dict().items()})
    assert all((values == 1).all() for values in module.state_dict().values())
    assert set(pickle.loads(pickle.dumps(blocks)).state_dict()) == set(names)


def test_an_example_is_tried_and_leaves_no_trace():
    module = MODELS["mobilenet"][0]()
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    blocks_of(module.eval(), ("features.3", "classifier.1"), IMAGES)
    assert all(torch.equal(values, module.state_dict()[name]) for name, values in before.items())
    assert torch.equal(state, torch.get_rng_state())
    assert not any(part.training for part in module.modules())


class Toy(nn.Module):
    """Two layers and a head, with something between them."""

    def __init__(self, between):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.unregistered = torch.zeros(())
        self.between = between

    def forward(self, inputs):
        return self.between(self, inputs)


def skips(model, x):
    return model.head(x + model.second(model.first(x)))


def repeats(model, x):
    return model.head(model.second(model.second(model.first(x))))


def shares(model, x):
    return model.head(functional.linear(model.second(model.first(x)), model.first.weight))


def branches(model, x):
    return model.head(model.second(x) if model.first(x).sum() > 0 else x)


def drops(model, x):
    return model.head(functional.dropout(model.second(model.first(x)), 0.5, model.training))


def gives_two(model, x):
    hidden = model.second(model.first(x))
    return model.head(hidden), hidden


def holds_gradients(model, x):
    with torch.no_grad():
        x = model.first(x)
    return model.head(model.second(x))


def rounds(model, x):
    with torch.autocast("cpu", torch.bfloat16):
        x = model.first(x)
    return model.head(model.second(x.float()))


def counts(model, x):
    model.calls += 1
    return model.head(model.second(model.first(x * model.calls)))


def replaces(model, x):
    x = model.first(x)
    model.calls = model.calls / 2 + x.detach().mean()
    return model.head(model.second(x))


def counts_unregistered(model, x):
    model.unregistered.add_(1)
    return model.head(model.second(model.first(x * model.unregistered)))


def makes_tensor(model, x):
    x = model.first(x)
    return model.head(model.second(torch.where(x > 0, x, torch.tensor(0.1) * x)))


def makes_noise(model, x):
    return model.head(model.second(model.first(x) + torch.randn(4)))


def plain(model, x):
    return model.head(torch.relu(model.second(model.first(x))))


@pytest.mark.parametrize(
    ("between", "at", "reason"),
    [
        (skips, ("second", "head"), r"in front of 'second' 2 values go on \(value and first\): allowed is one tensor"),
        (repeats, ("second", "head"), "the forward pass calls 'second' 2 times, allowed is once"),
        (shares, ("second", "head"), "the blocks 'stem' and 'second' share a weight, first.weight"),
        (branches, ("head",), r"forward pass of Toy can't be traced \(test_blocks.py:\d+, .*control flow"),
        (drops, ("second", "head"), r"Toy computes something else in training .* \(at 'dropout'\)"),
        (gives_two, ("second",), "the model gives a tuple, allowed is one tensor"),
        (
            holds_gradients,
            ("second", "head"),
            r"of Toy can't be traced \(test_blocks.py:\d+, torch.no_grad or torch.auto",
        ),
        (rounds, ("second", "head"), r"of Toy can't be traced \(test_blocks.py:\d+, torch.no_grad or torch.autocast"),
        (
            counts,
            ("second", "head"),
            r"of Toy can't be traced \(it sets 'calls' outside of layers: allowed are methods",
        ),
        (
            replaces,
            ("second", "head"),
            r"of Toy can't be traced \(it sets 'calls' outside of layers: allowed are methods",
        ),
        (counts_unregistered, ("second", "head"), r"can't be traced \(it sets 'unregistered' outside of layers"),
        (
            makes_tensor,
            ("second", "head"),
            r"can't be traced \(test_blocks.py:\d+, a tensor that is made there; self.reg",
        ),
        (
            makes_noise,
            ("second", "head"),
            r"can't be traced \(test_blocks.py:\d+, a tensor that is made there; self.reg",
        ),
        (plain, ("head", "second"), r"has them in the order \('second', 'head'\)"),
        (plain, ("third",), "there is no layer 'third' in Toy, which has first, second, head"),
        (plain, ("first",), "in front of 'first' nothing is computed"),
        (plain, (), "allowed are one or more different layers"),
        (plain, ("head", "head"), "allowed are one or more different layers"),
    ],
)
def test_what_is_in_the_way_is_named_in_one_line(between, at, reason):
    module = Toy(between)
    with pytest.raises(ValueError, match=reason) as error:
        blocks_of(module, at)
    assert "\n" not in str(error.value)
    assert module.calls == 0
    assert all(part.training for part in module.modules())


def adds_to_buffer(model, x):
    model.calls.add_(1)
    return model.head(model.second(model.first(x * model.calls)))


def copies_to_buffer(model, x):
    x = model.first(x)
    model.calls.copy_(x.detach().mean())
    return model.head(model.second(x - model.calls[None]))


@pytest.mark.parametrize("between", [adds_to_buffer, copies_to_buffer])
def test_a_buffer_changes_when_its_block_computes(between):
    module = Toy(between)
    blocks = blocks_of(module, ("second", "head"))
    assert module.calls == 0
    same_as_whole(module, blocks, torch.ones(3, 4))
    blocks_of(module, ("second", "head"), torch.ones(3, 4))
    assert module.calls == 0


def gpt2(kind="GPT2LMHeadModel", **options):
    transformers = pytest.importorskip("transformers")
    own = {"vocab_size": 50, "n_positions": 16, "n_embd": 16, "n_layer": 3, "n_head": 2, "use_cache": False}
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = transformers.GPT2Config(**own | tokens | {"tie_word_embeddings": False} | options)
    return getattr(transformers, kind)(config)


def bert(**options):
    transformers = pytest.importorskip("transformers")
    own = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    own |= {"intermediate_size": 32, "max_position_embeddings": 16, "num_labels": 3}
    return transformers.BertForSequenceClassification(transformers.BertConfig(**own | options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("build", "at"),
    [
        (gpt2, ("transformer.h.0", "transformer.h.2", "lm_head")),
        (lambda: gpt2("GPT2Model"), ("h.1", "h.2", "ln_f")),
        (bert, ("bert.encoder.layer.1", "classifier")),
    ],
    ids=["gpt2 with its head", "gpt2", "bert"],
)
def test_blocks_along_a_list_of_layers_compute_what_the_model_computes(build, at, dtype):
    torch.manual_seed(0)
    module = build().to(dtype)
    blocks = blocks_of(module, at, IDS)
    same_as_whole(module, blocks, IDS)
    if at[-1] != "ln_f":
        assert set(cut_shapes(blocks, IDS)) == {1, 2, 3} - ({3} if len(at) == 2 else set())
    # Another length than that of the example.
    assert torch.equal(blocks.eval()(IDS[:1, :4]), outputs_of(module.eval()(IDS[:1, :4]))[0])


@pytest.mark.parametrize(
    ("options", "at", "reason"),
    [
        ({"use_cache": True}, "lm_head", r"'transformer.h.1' gets a DynamicCache besides \(argument 1\)"),
        ({"tie_word_embeddings": True}, "lm_head", "the blocks 'stem' and 'head' share a weight, "),
        ({"attn_implementation": "eager"}, "lm_head", "'transformer.h.1' takes another tensor besides"),
        (
            {"kind": "GPT2ForSequenceClassification", "pad_token_id": 0},
            "score",
            "behind 'score' something is computed that is in no layer",
        ),
    ],
)
def test_what_is_in_the_way_along_a_list_of_layers_is_named_in_one_line(options, at, reason):
    with pytest.raises(ValueError, match=reason):
        blocks_of(gpt2(**options), ("transformer.h.1", at), IDS)


def test_along_a_list_of_layers_an_example_is_needed():
    with pytest.raises(ValueError, match=r"control flow\); to cut along the layers 'transformer.h' takes example="):
        blocks_of(gpt2(), ("transformer.h.1", "lm_head"))


def scales_before(model, x):
    return model.head(model.second(model.first(x * model.first.scale)))


def scales_behind(model, x):
    return model.head(model.second(model.first(x) * model.first.scale))


def scales_in_another_block(model, x):
    return model.head(model.second(model.first(x)) * model.first.scale)


@pytest.mark.parametrize("between", [scales_before, scales_behind, scales_in_another_block])
def test_a_layers_tensor_that_is_not_registered_is_used_outside_of_it(between):
    module = Toy(between)
    module.first.scale = torch.tensor(2.0)
    same_as_whole(module, blocks_of(module, ("second", "head")), torch.ones(3, 4))


class Stack(nn.Module):
    """A list of layers and a head, with something between them."""

    def __init__(self, between):
        super().__init__()
        self.layers, self.head = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.between = between

    def forward(self, inputs):
        if inputs.sum() > 1000:
            raise OverflowError  # this can't be traced
        for i, layer in enumerate(self.layers):
            inputs = self.between(self, i, layer, inputs)
        return self.head(inputs)


class Reversed(torch.autograd.Function):
    """Gradients with the other sign."""

    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return -gradient


def counts_before(model, i, layer, x):
    if i == 0:
        model.calls += 1
        x = x * model.calls
    return layer(x)


def counts_behind(model, i, layer, x):
    model.calls += i == 2
    return layer(x)


def layer_alone(model, i, layer, x):
    return layer(x)


def no_gradients_before(model, i, layer, x):
    with torch.set_grad_enabled(i > 0):
        return layer(x)


def no_gradients_behind(model, i, layer, x):
    with torch.set_grad_enabled(i == 0):
        return layer(x)


def detaches(model, i, layer, x):
    return layer(x.detach())


def reverses(model, i, layer, x):
    return layer(Reversed.apply(x))


@pytest.mark.parametrize(
    ("between", "differing"),
    [
        (layer_alone, None),
        (no_gradients_before, None),
        (counts_before, None),
        (counts_behind, "calls"),
        (no_gradients_behind, "gradient of layers.0.weight"),
        (detaches, "gradient of layers.1.weight"),
        (reverses, "gradient of layers.0.weight"),
    ],
)
def test_along_a_list_of_layers_gradients_and_buffers_are_compared(between, differing):
    module, example = Stack(between), torch.ones(3, 4)
    module(example).sum().backward()
    before, calls = [weight.grad for weight in module.parameters()], module.calls.clone()
    if differing is None:
        blocks_of(module, ("layers.1", "head"), example)
    else:
        with pytest.raises(ValueError, match=rf"the blocks of Stack do not give its {differing} "):
            blocks_of(module, ("layers.1", "layers.2", "head"), example)
    assert module.calls == calls
    assert all(weight.grad is gradient for weight, gradient in zip(module.parameters(), before, strict=True))
