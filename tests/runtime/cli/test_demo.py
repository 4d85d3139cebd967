"""``specfit demo``: the same tokens, one table, one picture, one solved tree."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch

from specfit_runtime.cli import main
from specfit_runtime.cli.demo import DEMO_POLICIES
from specfit_runtime.demo_files import demo_prompts
from specfit_runtime.errors import SpecfitError
from specfit_runtime.side_by_side import SideBySide

README = Path(__file__).resolve().parents[3] / "README.md"
SHORT = ("--max-new-tokens", "6", "--expert-cache", "4", "--emulate-link", "10")


def table(text: str) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the table that begins with policies."""
    lines = [line.split() for line in text.splitlines()]
    start = next(i for i, cells in enumerate(lines) if cells[:2] == ["policy", "speed"])
    end = next(i for i in range(start, len(lines)) if not lines[i])
    return lines[start], lines[start + 2 : end]


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> str:
    """What the command prints; whoever runs it finds no new file afterwards."""
    folder = tmp_path_factory.mktemp("demo")
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output):
        patch.chdir(folder)
        patch.setenv("HOME", str(folder))
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        assert main(["demo", *SHORT]) == 0
    assert list(folder.iterdir()) == []
    return output.getvalue()


def test_the_table_has_the_four_policies_and_what_they_moved(printed):
    _, rows = table(printed)
    assert [row[0] for row in rows] == list(DEMO_POLICIES)
    assert rows[0][1:4] == ["1.00", "1.00", "1.00"]
    assert "64 experts, 4 per token; 4 per layer are cached" in " ".join(printed.split())
    assert "emulated link of 10.0 GB/s. All 18 tokens of 3 texts equal" in " ".join(printed.split())


def test_bars_are_as_long_as_policies_are_fast(printed):
    bars = re.findall(r"^(\S+) +(#*) (\d+\.\d\d)$", printed, re.MULTILINE)
    assert {name for name, _, _ in bars} == set(DEMO_POLICIES)
    assert {name: speed for name, _, speed in bars} == {row[0]: row[1] for row in table(printed)[1]}
    speeds = [float(speed) for _, _, speed in bars]
    assert speeds == sorted(speeds, reverse=True)
    assert [len(bar) / 40 for _, bar, _ in bars] == pytest.approx(
        [speed / speeds[0] for speed in speeds], abs=0.03
    )


def test_the_tree_shows_what_is_verified(printed):
    found = re.search(r"(\d+) of (\d+)\s+nodes\s+are\s+verified", printed)
    lines = printed.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("node "))
    nodes = lines[start + 2 :]
    assert found is not None
    assert len(nodes) == int(found[2])
    chosen = [line for line in nodes if re.search(r" yes +\d\.\d{3}", line)]
    assert len(chosen) == int(found[1])
    assert chosen[0] == nodes[0]


def test_the_readme_shows_what_the_command_prints(printed):
    header, rows = table(printed)
    shown, policies = table(README.read_text(encoding="utf-8"))
    assert shown == header
    assert [row[0] for row in policies] == [row[0] for row in rows]
    assert [len(row) for row in policies] == [len(row) for row in rows]


def test_json_has_the_named_policies_beside_plain_decoding(capsys):
    assert main(["demo", *SHORT, "--policy", "chain-1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["policies"]) == ["ar", "chain-1"]
    plain, chain = document["policies"].values()
    assert plain["speed"] == [1.0, 1.0, 1.0]
    assert plain["link_bandwidth"] == 10e9
    assert plain["totals"]["tokens_per_pass"] == 1.0
    assert chain["totals"]["tokens_per_pass"] > 1.0
    assert document["tree"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_other_tokens_are_an_error(temperature):
    with SideBySide(["ar"], new_tokens=6, temperature=temperature, expert_cache=0.5) as sides:
        (report,) = sides.decode(demo_prompts()[0], 3).values()
        assert report.do_sample == (temperature > 0.0)
        with torch.no_grad():
            sides._stock.lm_head.weight.neg_()
        with pytest.raises(SpecfitError, match="policy ar decoded other tokens than the stock"):
            sides.decode(demo_prompts()[0], 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "best"), "'best' is unknown"),
        (("--expert-cache", "much"), "'much' is not understood"),
    ],
)
def test_errors_are_one_line(arguments, message, capsys):
    assert main(["demo", "--max-new-tokens", "4", *arguments]) == 1
    captured = capsys.readouterr()
    assert message in captured.err.splitlines()[-1]


def test_the_shipped_prompts_are_four_and_fit():
    from transformers import AutoTokenizer

    from specfit_runtime import demo_model

    tokenizer = AutoTokenizer.from_pretrained(demo_model())
    lengths = [len(tokenizer(prompt)["input_ids"]) for prompt in demo_prompts()]
    assert len(lengths) == 4
    assert all(30 < n < 256 for n in lengths)
