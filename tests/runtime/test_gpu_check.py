"""benchmarks/gpu_check.py, all of it that runs without a GPU."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from subprocesses import run_python

from specfit_runtime.families import FAMILIES

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks" / "gpu_check.py").is_file(),
    reason="benchmarks/ is not here: the tests run outside the checkout",
)


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The script's modules, by name."""
    monkeypatch.syspath_prepend(str(ROOT))
    for name in [m for m in sys.modules if m.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    logs = transformers.utils.logging
    precision, verbosity = torch.get_float32_matmul_precision(), logs.get_verbosity()
    bars = logs.is_progress_bar_enabled()
    names = ("table", "models", "equality", "forward", "copies", "overlap", "decode", "runner")
    yield SimpleNamespace(
        main=importlib.import_module("benchmarks.gpu_check").main,
        **{name: importlib.import_module(f"benchmarks.gpu.{name}") for name in names},
    )
    torch.set_float32_matmul_precision(precision)
    logs.set_verbosity(verbosity)
    if bars:
        logs.enable_progress_bar()
    for name in [m for m in sys.modules if m.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


def only_qwen(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    monkeypatch.setattr(module, "FAMILIES", {"qwen3_moe": FAMILIES["qwen3_moe"]})


def rows_of(out: str) -> list[str]:
    lines = out.splitlines()
    rule = next(i for i, line in enumerate(lines) if line.startswith("---"))
    assert lines[rule - 1].split() == ["part", "case", "verdict", "result"]
    assert sum(line.startswith("---") for line in lines) == 1  # one table
    return lines[rule + 1 :]


def test_the_whole_script_runs_on_a_cpu(check, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "its figures mean nothing" in out
    rows = rows_of(out)
    count = {part: sum(row.startswith(part) for row in rows) for part in check.runner._RUN}
    assert count == {
        "equality": len(FAMILIES) + 1,
        "forward": 2 * len(FAMILIES),
        "copies": 2,
        "overlap": 1,
        "decode": 1 + 2 * len(check.decode.POLICIES),
    }
    assert not [row for row in rows if "FAILED" in row or "not reached" in row or "no room" in row]
    for family in FAMILIES:
        assert any(row.startswith("equality") and family in row for row in rows)
    for row in rows:
        if row.startswith("equality"):
            assert "8 tokens equal" in row
            drafted = row.partition("chain-4 ")[2].partition(",")[0]
            assert float(drafted) > 1.5  # it is not equal for want of drafts
        elif row.startswith("forward"):
            assert ("  ok  " if "float32" in row else "  figure  ") in row
        elif row.startswith("decode") and "cached" in row:
            assert "MB/tok" in row
            # The drafter is played from the text of the first row.
            assert "16 tokens" in row


def test_a_wrong_token_is_found(
    check, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only_qwen(monkeypatch, check.equality)
    monkeypatch.setattr(check.equality, "demo_model", lambda: pytest.fail("not asked for"))
    load = check.equality.load_offloaded

    def load_another(*args, **kwargs):
        model = load(*args, **kwargs)
        model.lm_head.weight.data = model.lm_head.weight.data.roll(1, dims=0)
        return model

    monkeypatch.setattr(check.equality, "load_offloaded", load_another)
    monkeypatch.setattr(check.equality, "_check_shipped", lambda *args: None)
    assert check.main(["--device", "cpu", "--only", "equality"]) == 1
    (row,) = rows_of(capsys.readouterr().out)
    assert "FAILED" in row
    assert "ar from token 1 on, chain-4 from token 1 on" in row


def test_wrong_experts_show_in_the_forward_pass(
    check, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only_qwen(monkeypatch, check.forward)
    compute = importlib.import_module("specfit_runtime.experts").compute_batch

    def compute_wrongly(module, batch, parameters, rows, hidden, weights):
        mine, computed = compute(module, batch, parameters, rows, hidden, weights)
        return mine, computed * 1.01

    monkeypatch.setattr("specfit_runtime.experts.compute_batch", compute_wrongly)
    assert check.main(["--device", "cpu", "--only", "forward"]) == 1
    single, half = rows_of(capsys.readouterr().out)
    assert "FAILED" in single
    assert "largest difference" in single
    assert "figure" in half  # in bfloat16 it is for the reader to judge


def test_what_time_does_not_suffice_for_is_listed(
    check, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.main(["--device", "cpu", "--minutes", "1e-9"]) == 0
    rows = rows_of(capsys.readouterr().out)
    *rows, last = rows
    assert all("not reached" in row for row in rows)
    assert len(rows) == len(FAMILIES) + 1 + 2 * len(FAMILIES) + 3
    assert last.startswith(f"{len(rows)} rows were not reached")


def test_an_error_is_a_row_and_the_rest_goes_on(
    check, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("no such luck\nand more")

    monkeypatch.setattr(check.copies, "open_memory_store", broken)
    assert check.main(["--device", "cpu", "--only", "copies", "--only", "overlap"]) == 1
    captured = capsys.readouterr()
    copies, overlap = rows_of(captured.out)
    assert "FAILED" in copies
    assert copies.endswith("RuntimeError: no such luck")
    assert "figure" in overlap
    assert "Traceback" in captured.err


def test_without_a_device_it_ends_with_2(
    check, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert check.main([]) == 2
    assert "torch sees no CUDA device; --device cpu" in capsys.readouterr().err
    assert check.main(["--device", "tpu:x"]) == 2
    assert check.main(["--device", "meta"]) == 2


def test_a_model_too_large_for_the_host_has_no_room(
    check, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check.decode, "available_bytes", lambda: 1000)
    assert check.main(["--device", "cpu", "--only", "decode"]) == 0
    (row,) = rows_of(capsys.readouterr().out)
    assert "no room" in row


def test_a_step_is_begun_if_the_longest_of_its_kind_would_fit(check) -> None:
    clock = [0.0]
    table = check.table.Table(100.0, now=lambda: clock[0])
    with table.step("part", "a", "slow"):
        clock[0] += 40.0
    assert table.left == 60.0
    assert table.reached("part", "b", "slow")  # needs 48
    with table.step("part", "c", "quick"):
        clock[0] += 20.0
    assert not table.reached("part", "d", "slow")
    assert table.reached("part", "e", "quick")
    assert not table.reached("part", "f", "new", at_least=50.0)
    assert [(row.case, row.verdict) for row in table.rows] == [
        ("d", "not reached"),
        ("f", "not reached"),
    ]
    assert not table.failed


def test_flips_are_counted_from_the_first_on(check) -> None:
    compared: Callable[..., str] = check.decode._compared
    prompt = torch.zeros(1, 2, dtype=torch.int64)
    assert compared([0, 0, 1, 2, 3], None, prompt) == "3 tokens"
    assert compared([0, 0, 1, 2], [0, 0, 1, 2, 3], prompt) == "the same 2 tokens"
    assert "2 of 4 tokens differ from the first row's, from token 2 on" in compared(
        [0, 0, 1, 9, 3, 9], [0, 0, 1, 2, 3, 4], prompt
    )


def test_the_played_drafter_is_right_as_often_as_it_says(check) -> None:
    script = list(np.random.default_rng(3).integers(0, 512, 400))
    drafter = check.decode.PlayedDrafter([int(token) for token in script])
    config = SimpleNamespace(vocab_size=512, hidden_size=8)

    class Model:  # SimpleNamespace itself cannot be referred to weakly
        config = SimpleNamespace(get_text_config=lambda: config)

    drafter.bind(Model())
    drafter.start([int(token) for token in script[:2]])
    first = second = deep = 0
    for at in range(2, 390):
        drafter.begin()
        level = drafter.level(4, 3)
        assert len(set(level.token.tolist())) == 4
        first += level.token[0] == script[at]
        second += level.token[1] == script[at]
        nodes = {int(node) for node in level.expanded}
        below = drafter.level(4, 3)
        assert set(below.parent.tolist()) == nodes
        right = [1 + i for i, token in enumerate(level.token) if token == script[at]]
        deep += any(
            int(p) in right and token == script[at + 1]
            for p, token in zip(below.parent, below.token, strict=True)
        )
        drafter.commit([int(script[at])])
    assert 0.65 < first / 388 < 0.75
    assert 0.25 < second / 388 < 0.35
    assert deep > 350


def test_asv_finds_no_module_that_needs_torch() -> None:
    # It imports every module of the package in an environment that may be without it.
    modules = [module.name for module in pkgutil.iter_modules([str(ROOT / "benchmarks")])]
    assert "gpu_check" in modules
    assert "gpu" not in modules
    hidden = ["torch", "transformers"]
    done = run_python("import benchmarks.gpu_check", cwd=ROOT, hide=hidden)
    assert done.returncode == 0, done.stderr
