"""Torch's optimizers without its compiler.

An optimizer marks its methods for ``torch.compile``, and the first call imports all of that compiler: more than a
second, which a deployed client would spend on every message, as each starts a process. Nothing is compiled here, so
these call the methods below the marks.
"""

import torch


class SGD(torch.optim.SGD):
    """`torch.optim.SGD`, to the same bits."""

    add_param_group = torch.optim.SGD.add_param_group.__wrapped__
    zero_grad = torch.optim.SGD.zero_grad.__wrapped__
    state_dict = torch.optim.SGD.state_dict.__wrapped__
    load_state_dict = torch.optim.SGD.load_state_dict.__wrapped__
    step = torch.no_grad()(torch.optim.SGD.step.__wrapped__)


class Adam(torch.optim.Adam):
    """`torch.optim.Adam`, to the same bits."""

    add_param_group = torch.optim.Adam.add_param_group.__wrapped__
    zero_grad = torch.optim.Adam.zero_grad.__wrapped__
    state_dict = torch.optim.Adam.state_dict.__wrapped__
    load_state_dict = torch.optim.Adam.load_state_dict.__wrapped__
    step = torch.no_grad()(torch.optim.Adam.step.__wrapped__)
