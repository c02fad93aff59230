"""Whole models' updates in fewer bytes: codecs, and what an update is in a message."""

from .codec import Codec
from .qsgd import Qsgd
from .rounded import Float16, Int8
from .top_k import TopK
from .updates import Compressed, compressed, decompressed

__all__ = ["Codec", "Compressed", "Float16", "Int8", "Qsgd", "TopK", "compressed", "decompressed"]
