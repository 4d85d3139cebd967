"""Whatever a file or an argument holds: the documented result, or an error of specfit's own.

See `fuzz.outcome` for what else is asked. ``python -m fuzz.worker SEED 1 KIND``, with the checkout
and its folder tests on the path, runs one case again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from fuzz.kinds import KINDS, shares

import specfit_opt

_ROOT = Path(specfit_opt.__file__).resolve().parents[1]
_TESTS = Path(__file__).resolve().parents[1]


def run_cases(seed: int, count: int) -> tuple[Counter[str], list[str]]:
    """Return how often each verdict was given, and every case that is not as it must be."""
    path = os.pathsep.join([str(_ROOT), str(_TESTS)])
    done = subprocess.run(
        [sys.executable, "-m", "fuzz.worker", str(seed), str(count)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"},
        stdin=subprocess.DEVNULL,  # a question would end in an error
        capture_output=True,
        text=True,
        errors="replace",
    )
    verdicts: Counter[str] = Counter()
    bad, case = [], "the start"
    for line in done.stdout.splitlines():
        if not line.startswith("{"):
            continue  # a library printed something
        entry = json.loads(line)
        if "case" in entry:
            case = f"{entry['case'][0]}, seed {entry['case'][1]}"
            continue
        verdicts[entry["verdict"]] += 1
        if entry["verdict"] not in ("ok", "refused", "undamaged"):
            bad.append(f"{case}: {entry['verdict']}: {entry['details']}")
    if done.returncode:
        bad.append(f"{case}: the process ended with {done.returncode}: {done.stderr[-2000:]}")
    return verdicts, bad


def check(seed: int, count: int) -> None:
    """Run cases and print the counts, which `pytest -s` shows."""
    verdicts, bad = run_cases(seed, count)
    print("\n", dict(verdicts))
    assert not bad, "\n".join([f"{len(bad)} cases", *bad])
    assert verdicts["ok"] + verdicts["refused"] == sum(shares(list(KINDS), count).values())
    assert verdicts["undamaged"] == 2 * len(KINDS)
    # Damage that nothing notices, or that nothing survives, would not test much.
    assert verdicts["ok"] > 0.05 * count
    assert verdicts["refused"] > 0.3 * count


def test_500_cases() -> None:
    check(0, 500)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_20_000_cases(part: int) -> None:
    check(10_000 * (part + 1), 2000)
