"""The programs under examples/ run, and say what they are there to show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


def run(*command: str, cwd: Path = ROOT) -> str:
    """Run Python with this checkout first on its path and return what it prints."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested_here() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES.iterdir():
        if path.suffix in (".py", ".pyx"):
            assert f'"{path.name}"' in here, f"examples/{path.name} is run by no test"


def test_own_policy_is_replayed_beside_the_others() -> None:
    lines = run(str(EXAMPLES / "own_policy.py")).splitlines()
    header = re.split(r"\s{2,}", next(line for line in lines if line.startswith("policy")))
    rows = {
        cells[0]: dict(zip(header, cells, strict=True))
        for line in lines
        if len(cells := re.split(r"\s{2,}", line)) == len(header)
    }
    plain, strict, lax = rows["ar"], rows["likely-20"], rows["likely-5"]
    assert float(plain["tokens/pass"]) == 1.0
    # The lower the bar, the more is verified and the more is committed.
    for column in ("nodes", "tokens/pass"):
        assert float(plain[column]) < float(strict[column]) < float(lax[column])
    assert {"chain-2", "specfit"} <= set(rows)


def test_networkx_tree_marks_a_subtree() -> None:
    pytest.importorskip("networkx")
    text = run(str(EXAMPLES / "networkx_tree.py"))
    chosen = re.findall(r"^verify (.*)$", text, re.MULTILINE)
    skipped = re.findall(r"^ *skip (.*)$", text, re.MULTILINE)
    assert len(chosen) + len(skipped) == 6
    assert chosen[0] == "The"
    # Each node is named after its path, so parents are prefixes.
    assert all(name.rpartition(" ")[0] in chosen for name in chosen[1:])
    found = re.search(r"([\d.]+) tokens/s predicted, ([\d.]+) without", text)
    assert found is not None
    assert float(found[1]) > float(found[2])


def test_bare_draft_loop_says_the_same_text_faster() -> None:
    text = run(str(EXAMPLES / "bare_draft_loop.py"))
    assert "same text: True" in text
    speed = dict(re.findall(r"^(\w+): .* ([\d.]+) tokens/s$", text, re.MULTILINE))
    passes = dict(re.findall(r"^(\w+): ([\d.]+) tokens per pass", text, re.MULTILINE))
    assert float(passes["plain"]) == 1.0 < float(passes["specfit"])
    assert float(speed["specfit"]) > float(speed["plain"])


#: What the compiled example is compared with: one layer, one root, up to 30 nodes.
COMPARE = """
import numpy as np
import selection
from specfit_opt import CostModel, DraftTree, ExpertRouting, solve

rng = np.random.default_rng(0)
for n in range(1, 31):
    tree = DraftTree.from_conditional(
        [-1, *(int(rng.integers(0, v)) for v in range(1, n))], [1.0, *rng.random(n - 1)]
    )
    ids = np.array([rng.choice(64, 4, replace=False) for _ in range(n)])
    resident = rng.random(64) < 0.3
    words = np.array([sum(1 << int(e) for e in row) for row in ids], np.uint64)
    nodes, throughput = selection.select(
        tree.parent, tree.path_prob, words, resident.view(np.uint8), 0.002, 0.02, 0.001
    )
    routing = ExpertRouting(ids[:, None], 64, resident[None])
    best = solve(tree, routing, CostModel(0.02, 0.001, 0.002))
    assert abs(throughput - best.throughput) < 1e-9 * throughput
    assert nodes.tolist() == best.nodes.tolist()
print("equal")
"""


@pytest.fixture
def cython_source(tmp_path: Path) -> Path:
    pytest.importorskip("Cython", reason="Cython is not in this environment")
    if find_spec("specfit_opt.kernel._kernel") is None:
        pytest.skip("the kernel is not compiled")
    return tmp_path / "selection.pyx"


def test_cython_example_translates(cython_source: Path) -> None:
    cython_source.write_bytes((EXAMPLES / "selection.pyx").read_bytes())
    run("-m", "cython", cython_source.name, cwd=cython_source.parent)
    assert cython_source.with_suffix(".c").stat().st_size > 0


@pytest.mark.slow
def test_cython_example_chooses_what_solve_chooses(cython_source: Path) -> None:
    cython_source.write_bytes((EXAMPLES / "selection.pyx").read_bytes())
    run("-m", "Cython.Build.Cythonize", "-i", "-q", cython_source.name, cwd=cython_source.parent)
    assert run("-c", COMPARE, cwd=cython_source.parent) == "equal\n"
