"""Types of the compiled kernel: those of its twin, where it is told what the functions do."""

from .twin import TreeState as TreeState
from .twin import evaluate as evaluate
from .twin import evict as evict
from .twin import heaviest as heaviest
from .twin import pack as pack
from .twin import solve as solve
from .twin import union_mask as union_mask

NAME: str
ROWS: str
ROW_VARIABLE: str
CHECKED: bool
BUILD: dict[str, str]

def row_versions() -> list[str]: ...
