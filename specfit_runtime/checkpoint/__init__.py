"""What the files of a checkpoint hold, and where in them the experts lie."""

from .checkpoint import Checkpoint
from .expert_index import ByteRange, ExpertIndex
from .folder import checkpoint_folder
from .foreign_code import refuse_code
from .header import StoredTensor, read_header
from .index_experts import index_experts
from .model_config import read_generation_config, read_model_config, reading
from .record import PieceSlot, RecordLayout

__all__ = [
    "ByteRange",
    "Checkpoint",
    "ExpertIndex",
    "PieceSlot",
    "RecordLayout",
    "StoredTensor",
    "checkpoint_folder",
    "index_experts",
    "read_generation_config",
    "read_header",
    "read_model_config",
    "reading",
    "refuse_code",
]
