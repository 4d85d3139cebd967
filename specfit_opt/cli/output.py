"""What goes to standard output and standard error."""

from __future__ import annotations

import json
import math
import sys
from contextlib import suppress
from typing import Any

import numpy as np


def print_json(document: Any) -> None:
    """Print one JSON document; figures that JSON cannot hold (inf, NaN) become null."""
    json.dump(_plain(document), sys.stdout, indent=2, allow_nan=False)
    print()


def note(message: str) -> None:
    """Tell the user something that is no result: on standard error, so that pipes stay clean."""
    with suppress(OSError):  # what standard error cannot take is no reason to give no result
        print(f"specfit: {message}", file=sys.stderr)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
