"""Several models of one architecture as one: their layers side by side, so that one call computes all of them.

What flows through has the models' channels one after the other, (B, n * C, ...): convolutions work in groups, or as a
batched matrix product, which linear layers always are, and what treats every channel alike (ReLU, pooling, a residual
sum) stays as it is. Only layers with weights, and dropout, are replaced, so a module with a `forward` of its own can be
stacked too.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..shared.arrays import rows_as_travel
from ..shared.cut import copied
from ..shared.generators import seeded_torch
from ..shared.layouts import laid_out, layout_of
from .convolution import as_products, in_groups

# Largest difference of a stack's outputs, relative to their size, from those of the models that it stands for. Float32
# rounds to 1e-7 of them; what can't be stacked mixes models, and is off by about 1.
TOLERANCE = 1e-3


class StackedModel:
    """Computes n models of one architecture at once.

    Parameters
    ----------
    model : nn.Module
        One of them, for its layers. It is copied.

    Raises
    ------
    ValueError
        If a layer of it can't be stacked.
    """

    def __init__(self, model: nn.Module) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        if len(model.state_dict(keep_vars=True)) != len(tensors):
            raise ValueError("some of its layers share their weights, or have some that are not saved")
        # In a Sequential, so that a model that is a single layer can be replaced too.
        self._model = nn.Sequential(copied(model))
        self._places: dict[str, tuple[_Layer, str]] = {}  # of the weights, by their names in the model
        self._dropouts: list[_Dropout] = []
        self._stack_layers(self._model, "")

    def __call__(self, weights: Mapping[str, Tensor], inputs: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the outputs of training mode, of shape (n, B, ...).

        Parameters
        ----------
        weights : Mapping[str, Tensor]
            The models' states by the names in `model.state_dict()`, (n, ...) each. Statistics of BatchNorm change in
            place.
        inputs : Tensor
            A mini-batch for each model, (n, B, ...); each lies in memory as for its model alone, see `beside`.
        generators : Sequence[torch.Generator]
            What each model's dropout draws from.
        """
        for name, (layer, attribute) in self._places.items():
            layer.given[attribute] = weights[name]
        for dropout in self._dropouts:
            dropout.generators, dropout.layout = generators, layout_of(inputs[0])
        joined = inputs.transpose(0, 1).flatten(1, 2)
        if joined.dim() == 4 and joined.device.type == "cpu":  # there pooling is several times as fast in this layout
            joined = joined.contiguous(memory_format=torch.channels_last)
        outputs: Tensor = self._model(joined)
        return outputs.unflatten(1, (len(inputs), -1)).transpose(0, 1)

    def _stack_layers(self, parent: nn.Module, path: str) -> None:
        for name, module in parent.named_children():
            # The name in the model: the Sequential around it has none there.
            own = f"{path}.{name}" if path else name if parent is not self._model else ""
            if type(module) is nn.Dropout:
                self._dropouts.append(_Dropout(module))
                setattr(parent, name, self._dropouts[-1])
            elif type(module) in STACKED:
                if others := sorted(module.state_dict().keys() - _OWN_WEIGHTS):
                    raise ValueError(f"its layer {own!r} computes its weights from others ({', '.join(others)})")
                layer = STACKED[type(module)](module)
                setattr(parent, name, layer)
                for attribute in module.state_dict():
                    self._places[f"{own}.{attribute}" if own else attribute] = layer, attribute
            elif module._parameters or module._buffers:
                allowed = ", ".join(kind.__name__ for kind in STACKED)
                raise ValueError(f"its layer {own!r} is of {type(module).__name__}: allowed are {allowed}")
            else:
                self._stack_layers(module, own)


class _Layer(nn.Module):
    """A layer of n models.

    Parameters
    ----------
    of_one : nn.Module
        The layer of one of them, for its settings.

    Attributes
    ----------
    given : dict[str, Tensor]
        The weights for the next call, (n, ...) each, by the names that they have in the layer.
    """

    def __init__(self, of_one: nn.Module) -> None:
        super().__init__()
        self.of_one = (of_one,)  # in a tuple, so that its weights are not this module's
        self.given: dict[str, Tensor] = {}

    def joined(self, name: str) -> Tensor | None:
        """Return weights (n, C, ...) as (n * C, ...), None where the layer has none of that name."""
        return self.given[name].flatten(0, 1) if name in self.given else None


class _Conv2d(_Layer):
    def forward(self, inputs: Tensor) -> Tensor:
        (one,) = self.of_one
        assert isinstance(one, nn.Conv2d)
        convolved = in_groups if inputs.device.type == "cpu" else as_products
        return convolved(one, self.given["weight"], self.given.get("bias"), inputs)


class _Linear(_Layer):
    def forward(self, inputs: Tensor) -> Tensor:
        weight = self.given["weight"]
        outputs = torch.bmm(inputs.unflatten(1, (len(weight), -1)).transpose(0, 1), weight.transpose(1, 2))
        if "bias" in self.given:
            outputs = outputs + self.given["bias"].unsqueeze(1)
        return outputs.transpose(0, 1).flatten(1)


class _BatchNorm(_Layer):
    def forward(self, inputs: Tensor) -> Tensor:
        (one,) = self.of_one
        assert isinstance(one, nn.BatchNorm1d | nn.BatchNorm2d)
        if "num_batches_tracked" in self.given:
            self.given["num_batches_tracked"] += 1
        mean, variance = self.joined("running_mean"), self.joined("running_var")  # views, which change in place
        momentum = 0.0 if one.momentum is None else one.momentum
        return F.batch_norm(inputs, mean, variance, self.joined("weight"), self.joined("bias"), True, momentum, one.eps)


class _GroupNorm(_Layer):
    def forward(self, inputs: Tensor) -> Tensor:
        (one,) = self.of_one
        assert isinstance(one, nn.GroupNorm)
        num_models = inputs.shape[1] // one.num_channels
        return F.group_norm(inputs, num_models * one.num_groups, self.joined("weight"), self.joined("bias"), one.eps)


class _Dropout(nn.Module):
    """Drops for each of n models what `nn.Dropout` would, had it drawn from the model's own generator.

    Alone it draws in the order in which its input lies in memory: of images, that of the model's inputs.
    """

    def __init__(self, of_one: nn.Dropout) -> None:
        super().__init__()
        self._share = of_one.p
        self.generators: Sequence[torch.Generator] = ()
        self.layout = torch.contiguous_format

    def forward(self, inputs: Tensor) -> Tensor:
        layout = self.layout if inputs.dim() == 4 else torch.contiguous_format
        parts = [
            torch.empty(part.shape, dtype=part.dtype, device=part.device, memory_format=layout)
            for part in inputs.chunk(len(self.generators), 1)
        ]
        kept = [own.bernoulli_(1 - self._share, generator=one) for own, one in zip(parts, self.generators, strict=True)]
        return inputs * torch.cat(kept, 1) / (1 - self._share)


_OWN_WEIGHTS = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
# Kinds of layers with weights that can be stacked.
STACKED: dict[type[nn.Module], type[_Layer]] = {
    nn.Conv2d: _Conv2d,
    nn.Linear: _Linear,
    nn.BatchNorm1d: _BatchNorm,
    nn.BatchNorm2d: _BatchNorm,
    nn.GroupNorm: _GroupNorm,
}


def beside(inputs: Sequence[Tensor]) -> Tensor:
    """Return mini-batches of n models, equally large, as one (n, B, ...), in which images lie in memory as before."""
    if layout_of(inputs[0]) is not torch.channels_last:
        return torch.stack(list(inputs))
    return torch.stack([own.permute(0, 2, 3, 1) for own in inputs]).permute(0, 1, 4, 2, 3)


def check_stackable(model: nn.Module, example: Tensor, *, travels: bool = False) -> None:
    """Raise ValueError unless models like this one can be stacked: two of them are tried, side by side and alone.

    Parameters
    ----------
    model : nn.Module
        The model. It stays as it is.
    example : Tensor
        A batch of inputs, for their shape and how they lie in memory.
    travels : bool (default: False)
        They come to the stack from clients, images channels last.
    """
    if not isinstance(example, Tensor) or not example.is_floating_point() or example.dim() < 2:
        raise ValueError("its inputs are not one tensor of floats, (B, C, ...)")
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and module.padding_mode != "zeros":
            raise ValueError(f"its layer {name!r} pads with padding_mode={module.padding_mode!r}: allowed is 'zeros'")
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.momentum is None:
            raise ValueError(f"its layer {name!r} averages over all mini-batches (momentum=None)")
    draw = torch.Generator().manual_seed(0)
    try:
        models = [copied(model).cpu().train() for _ in range(2)]
    except Exception as error:  # its layers may be anybody's
        raise ValueError(f"its layers can't be copied ({_line_of(error)})") from None
    stacked = StackedModel(models[0])
    tolerance = max(TOLERANCE, 16 * torch.finfo(example.dtype).eps)
    drawn = torch.randn((2, 3, *example.shape[1:]), generator=draw, dtype=example.dtype)
    inputs = [laid_out(own, layout_of(example)) for own in drawn]
    with torch.no_grad():
        for weights in models[1].parameters():
            weights.add_(torch.randn(weights.shape, generator=draw) * weights.std(correction=0))
        states = stacked_states([one.state_dict() for one in models], drawn.device)
        try:
            together = rows_as_travel(drawn) if travels else beside(inputs)
            side_by_side = stacked(states, together, [torch.Generator().manual_seed(i) for i in range(2)])
        except Exception as error:
            raise ValueError(f"models side by side fail ({_line_of(error)})") from None
        for number, (one, got) in enumerate(zip(models, side_by_side, strict=True)):
            with seeded_torch(number, torch.device("cpu")):
                alone = one(inputs[number])
            if got.shape != alone.shape or not torch.allclose(got, alone, 0.0, tolerance * float(alone.abs().max())):
                raise ValueError("models side by side do not give the outputs that each gives alone")
    if unused := _weights_without_gradient(models[0], inputs[0]):
        raise ValueError(f"its weights {', '.join(unused)} train, but what it computes does not depend on them")


def _line_of(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _weights_without_gradient(model: nn.Module, inputs: Tensor) -> list[str]:
    """Return the names of weights that train and that the outputs do not depend on."""
    trained = {name: weights for name, weights in model.named_parameters() if weights.requires_grad}
    with seeded_torch(0, torch.device("cpu")):
        outputs = model(inputs)
    gradients = torch.autograd.grad(outputs.sum(), list(trained.values()), allow_unused=True) if trained else ()
    return [name for name, gradient in zip(trained, gradients, strict=True) if gradient is None]


def stacked_states(states: Sequence[Mapping[str, Tensor]], device: torch.device) -> dict[str, Tensor]:
    """Return the states of several models as one, of tensors (n, ...) on a device."""
    return {name: torch.stack([state[name] for state in states]).to(device) for name in states[0]}
