"""What the files of a checkpoint hold, and where in them the experts lie."""

from .expert_index import ByteRange, ExpertIndex
from .record import PieceSlot, RecordLayout

__all__ = ["ByteRange", "ExpertIndex", "PieceSlot", "RecordLayout"]
