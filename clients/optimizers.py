"""Torch's optimizers without its compiler.

An optimizer marks its methods for ``torch.compile``, and the first call imports all of that compiler: more than a
second, which a deployed client would spend on every message, as each starts a process. Nothing is compiled here, so
these call the methods below the marks.
"""

import torch


class _Unmarked:
    """What all optimizers have from `torch.optim.Optimizer`."""

    add_param_group = torch.optim.Optimizer.add_param_group.__wrapped__
    zero_grad = torch.optim.Optimizer.zero_grad.__wrapped__
    state_dict = torch.optim.Optimizer.state_dict.__wrapped__
    load_state_dict = torch.optim.Optimizer.load_state_dict.__wrapped__


class SGD(_Unmarked, torch.optim.SGD):
    """`torch.optim.SGD`, to the same bits."""

    step = torch.no_grad()(torch.optim.SGD.step.__wrapped__)


class Adam(_Unmarked, torch.optim.Adam):
    """`torch.optim.Adam`, to the same bits."""

    step = torch.no_grad()(torch.optim.Adam.step.__wrapped__)
