"""What became of one case, measured in the process that ran it.

The property of every case: it gives its result or an error of specfit's own, in 2 seconds of the
processor and 500 MB, prints no warning and leaves no file behind.
"""

from __future__ import annotations

import resource
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specfit_opt.errors import SpecfitError

SECONDS, MEGABYTES = 2.0, 500.0

#: No case may need more on the clock, however busy the machine: it would be a hang.
_PATIENCE = 60


class Hang(BaseException):
    """A case took too long. No handler of the product's catches it."""


def outcome(case: Callable[[], Any], folder: Path) -> tuple[str, str]:
    """Run ``case`` and return how it ended, and details of what must not be.

    Returns
    -------
    verdict : str
        ``"ok"`` or ``"refused"``; or what is wrong.
    details : str
    """
    before = sorted(folder.rglob("*"))
    size = _reset_peak()
    began = time.process_time()
    verdict, details = _run(case)
    seconds = time.process_time() - began
    grown = _peak() - size
    if verdict not in ("ok", "refused"):
        return verdict, details
    if seconds > SECONDS:
        return "slow", f"{seconds:.1f} s ({verdict}: {details})"
    if grown > MEGABYTES:
        return "memory", f"{grown:.0f} MB ({verdict}: {details})"
    if sorted(folder.rglob("*")) != before:
        return "leftover", f"files changed in {folder.name} ({verdict}: {details})"
    return verdict, details


def _run(case: Callable[[], Any]) -> tuple[str, str]:
    def hang(*_: Any) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, hang)
    signal.signal(signal.SIGPROF, hang)
    signal.alarm(_PATIENCE)
    signal.setitimer(signal.ITIMER_PROF, 5 * SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", RuntimeWarning)
            case()
    except SpecfitError as error:
        message = str(error)
        if not message or len(message) > 5000:
            return "message", f"{type(error).__name__} of {len(message)} characters"
        return "refused", f"{type(error).__name__}: {message[:200]}"
    except Hang:
        return "hang", "".join(traceback.format_exc(limit=-3))
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-3:])
        return "raw", f"{type(error).__name__}: {str(error)[:200]}\n{where}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
    return "ok", ""


def _reset_peak() -> float:
    """Forget the process's greatest size so far and return its size, in MB."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not every system lets one; then growth beyond the peak so far is measured
        return _peak()
    return _status("VmRSS")


def _peak() -> float:
    try:
        return _status("VmHWM")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _status(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / 1024
    raise OSError(key)
