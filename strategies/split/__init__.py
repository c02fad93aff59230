"""Split training at an edge: the server half, the algorithms as edges, and head fine-tuning."""

from espalier.clients.shared.cut import Cut

from .edge import SplitEdge
from .fine_tuning import FineTuning, Personalised, fine_tune_heads
from .fsl_sage import Fit, FslSage
from .local_loss import LocalLossTransport
from .server_block import ServerBlock
from .sfl_v1 import SplitFedV1
from .sfl_v2 import SplitFedV2
from .sl import Relay
from .stream import StreamServer
from .stream_transport import StreamTransport
from .transports import MessageTransport, Transport

__all__ = [
    "Cut",
    "FineTuning",
    "Fit",
    "FslSage",
    "LocalLossTransport",
    "MessageTransport",
    "Personalised",
    "Relay",
    "ServerBlock",
    "SplitEdge",
    "SplitFedV1",
    "SplitFedV2",
    "StreamServer",
    "StreamTransport",
    "Transport",
    "fine_tune_heads",
]
