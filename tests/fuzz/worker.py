"""Runs cases in a process of its own, and says on standard output what became of each.

``python -m fuzz.worker SEED COUNT [KIND ...]`` runs COUNT cases of the kinds; a line of JSON each:
before it the case's name, after it the verdict. So one sees which case ended the process.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from pathlib import Path

from fuzz.kinds import KINDS, shares
from fuzz.outcome import outcome

#: Address space beyond what the process has, at which a case gets a MemoryError: no machine dies.
_SPACE = 8 * 2**30


def main(seed: int, count: int, names: list[str]) -> None:
    """Run the cases."""
    for name, share in shares(names or list(KINDS), count).items():
        # Undamaged first: that has to work, and imports and caches belong to no case.
        run(name, None)
        run(name, None)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + _SPACE, -1))
        for i in range(share):
            run(name, seed + i)
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))


def run(name: str, seed: int | None) -> None:
    """Run one case and say what became of it."""
    say(case=[name, seed])
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if seed is None:
            KINDS[name].case(name, None, folder)()
            say(verdict="undamaged", details="")
            return
        case = KINDS[name].case(name, seed, folder)
        verdict, details = outcome(case, folder)
    say(verdict=verdict, details=details)


def say(**entries: object) -> None:
    """Write one line."""
    print(json.dumps(entries), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
