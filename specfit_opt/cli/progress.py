"""The progress bar; needs the extra ``cli``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .output import note


@contextmanager
def progress_bar(
    title: str, delay: float = 0.5, unit: str = "positions"
) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on standard error while the block runs; none where that is no terminal.

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
