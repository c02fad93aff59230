import warnings

# The command line library that Flower imports warns of its own next version; with warnings as errors it could not be
# imported at all.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import flwr.app  # noqa: F401

import torch

# As in the app: the order in which threads add up would change the last bits.
torch.set_num_threads(1)
