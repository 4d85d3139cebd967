"""What goes to standard output and standard error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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


@contextmanager
def progress_bar(
    title: str, delay: float = 0.5, unit: str = "positions"
) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on standard error while the block runs; none where that is no terminal.

    It needs the extra ``cli``.

    Parameters
    ----------
    title : str
    delay : float
        Seconds before it appears, so that quick work shows none.
    unit : str
        What is counted.

    Yields
    ------
    callable
        ``report(done, total)``.
    """
    try:
        from tqdm import tqdm
    except ImportError:
        note("tqdm is not installed, so no progress bar: pip install 'specfit[cli]'")
        yield lambda done, total: None
        return
    with tqdm(desc=title, unit=f" {unit}", disable=None, leave=False, delay=delay) as bar:

        def report(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield report


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
