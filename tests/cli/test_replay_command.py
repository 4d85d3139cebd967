"""``specfit replay`` as a user runs it."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import termios
from dataclasses import replace as changed
from importlib import resources

import pytest
from subprocesses import environment

from specfit_opt.cli import main
from specfit_opt.data import EXAMPLE_EXPERT_BYTES, EXAMPLE_LAYER_REPEAT, example_trace
from specfit_opt.files import load_trace, save_trace
from specfit_opt.policies import POLICIES
from specfit_opt.profiles import load_profile
from specfit_opt.replay import Overlap, default_policies, replay, replay_table

QUICK = ("--policy", "ar", "chain-2")


@pytest.fixture
def trace_file(tmp_path):
    path = tmp_path / "recorded.npz"
    shutil.copy(str(resources.files("specfit_opt.data") / "example-trace.npz"), path)
    return path


def example_replay(**arguments):
    return replay(
        example_trace(),
        expert_bytes=EXAMPLE_EXPERT_BYTES,
        layer_repeat=EXAMPLE_LAYER_REPEAT,
        **arguments,
    )


def test_the_example_under_every_policy(specfit):
    done = specfit("replay", "--cache", "16")
    assert done.returncode == 0, done.stderr
    (said,) = done.stderr.splitlines()
    assert "no trace given: using the recorded example" in said
    assert "9,437,184 bytes" in said
    trace = example_trace()
    names = [line.split()[0] for line in done.stdout.splitlines()[3:]]
    pool = int((trace.cycle_start[1:] - trace.cycle_start[:-1]).max())
    assert names == default_policies(trace.max_depth, pool)
    assert "each recorded layer standing for 6" in done.stdout


def test_the_table_is_that_of_the_library_and_the_summary_follows(capsys):
    assert main(["replay", *QUICK, "--cache", "25%", "16", "32"]) == 0
    table, summary = capsys.readouterr().out.split("\n\nall ")
    # 25 % of 64 experts are 16 slots: one cell, not two.
    assert table == replay_table(example_replay(policies=["ar", "chain-2"], cache=[16, 32]))
    assert summary.startswith("2 cells")
    assert [line.split()[0] for line in summary.splitlines()[3:]] == ["ar", "chain-2"]


def test_overlap_has_two_columns_of_its_own(capsys):
    assert main(["replay", "--policy", "chain-2", "--cache", "16", "--overlap"]) == 0
    table = capsys.readouterr().out
    results = example_replay(policies=["chain-2"], cache=16, overlap=Overlap())
    assert table == replay_table(results) + "\n"
    lines = table.splitlines()
    assert lines[1].endswith("seconds  hidden  in vain")
    in_vain = round(100 * results[0].wasted_prefetch_bytes / results[0].bytes)
    assert lines[3].split()[-2:] == [f"{results[0].hidden_seconds:.3f}", f"{in_vain}%"]
    without = example_replay(policies=["chain-2"], cache=16)
    assert "hidden" not in replay_table(without)


def test_no_summary_without_plain_decoding(capsys):
    assert main(["replay", "--policy", "chain-1", "--cache", "16", "32"]) == 0
    assert "cells" not in capsys.readouterr().out


def test_json_holds_every_result(trace_file, specfit):
    done = specfit(
        "replay", trace_file, *QUICK, "--cache", "16", "--profile", "pcie3", "nvme",
        "--expert-bytes", "1000000", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    results = json.loads(done.stdout)
    assert [(r["profile"], r["policy"]) for r in results] == [
        (profile, policy) for profile in ("pcie3", "nvme") for policy in ("ar", "chain-2")
    ]
    trace = changed(example_trace(), name="recorded")
    (expected, _) = replay(
        trace, policies=["ar", "chain-2"], cache=16, profile="pcie3", expert_bytes=1_000_000
    )
    assert results[0] == expected.to_dict()


@pytest.mark.parametrize("policy", ["specfit", "ratio", "pool-exact"])
def test_policy_and_warmup_reach_the_replay(policy, capsys):
    arguments = ["--policy", policy, "--cache", "32", "--warmup", "40"]
    assert main(["replay", *arguments, "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    (expected,) = example_replay(policies=[policy], cache=32, warmup=40)
    assert result == expected.to_dict()
    assert result["policy"] == policy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "specfti"], "policy 'specfti' is unknown; did you mean 'specfit'?"),
        (["--policy", "pool-exat"], "method 'exat' is unknown; did you mean 'exact'?"),
        (["--policy", "specfit", "--cache-policy", "belady"], "must know all passes beforehand"),
        (["--profile", "hbm", "--cache", "25%"], "keeps all experts resident"),
        (["nowhere.npz"], "nowhere.npz"),
    ],
)
def test_errors_are_one_line(arguments, message, capsys):
    assert main(["replay", *arguments]) == 1
    *_, error = capsys.readouterr().err.splitlines()
    assert error.startswith("specfit: error: ")
    assert message in error


def test_help_names_every_policy(specfit):
    done = specfit("replay", "--help")
    assert done.returncode == 0
    rows = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    assert set(POLICIES) <= set(rows)


def test_traces_of_one_model_are_decoded_one_after_the_other(tmp_path, capsys):
    paths = [str(tmp_path / f"{name}.npz") for name in ("first", "second")]
    for path in paths:
        save_trace(path, example_trace())
    arguments = ["--expert-bytes", str(EXAMPLE_EXPERT_BYTES), "--cache", "50%", "--json"]
    assert main(["replay", *paths, *arguments, "--policy", "ar", "specfit"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert [(r["trace"], r["policy"]) for r in results] == [
        (trace, policy) for trace in ("first", "second") for policy in ("ar", "specfit")
    ]
    (alone, _), (_, after) = (
        [r for r in results if r["policy"] == policy] for policy in ("ar", "specfit")
    )
    expected = replay(
        [load_trace(path) for path in paths],
        policies=["ar", "specfit"],
        cache="50%",
        expert_bytes=EXAMPLE_EXPERT_BYTES,
    )
    # By trace here, by policy there.
    assert [alone, after] == [expected[0].to_dict(), expected[3].to_dict()]


def test_a_profile_of_the_users_own(tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text(
        json.dumps(
            {
                "version": 1,
                "name": "mine",
                "fixed_time": 0.01,
                "node_time": 0.001,
                "draft_time": 0.0,
                "bandwidth": 1e9,
            }
        )
    )
    assert main(["replay", *QUICK, "--cache", "0", "--profile", str(path), "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    expected = example_replay(policies=["ar", "chain-2"], cache=0, profile=load_profile(path))
    assert results == [result.to_dict() for result in expected]


def test_a_trace_without_sizes_asks_for_them(trace_file, capsys):
    assert main(["replay", str(trace_file), *QUICK]) == 1
    assert "expert_bytes is unknown" in capsys.readouterr().err


def test_two_traces_of_one_name_are_refused(trace_file, capsys):
    arguments = ["replay", str(trace_file), str(trace_file), *QUICK, "--expert-bytes", "1000"]
    assert main(arguments) == 1
    assert "two traces are named 'recorded'" in capsys.readouterr().err


def test_plot_writes_a_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="drawing needs the extra 'plot'")
    path = tmp_path / "replay.png"
    assert main(["replay", *QUICK, "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_tqdm_a_note_replaces_the_bar(specfit):
    done = specfit("replay", *QUICK, "--cache", "16", hide=["tqdm"])
    assert done.returncode == 0, done.stderr
    assert "specfit[cli]" in done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert "chain-2" in done.stdout


def test_the_bar_is_drawn_on_a_terminal_and_standard_output_stays_clean(tmp_path):
    pytest.importorskip("tqdm", reason="the progress bar needs the extra 'cli'")
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 100))
    code = (
        "import tqdm; tqdm.tqdm.monitor_interval = 0\n"
        "import specfit_opt.cli.output as p\n"
        "with p.progress_bar('walk', delay=0.0) as report:\n"
        "    for done in range(5): report(done + 1, 5)\n"
        "print('result')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=follower,
        cwd=tmp_path,
        env={**environment(), "TQDM_MININTERVAL": "0"},
        timeout=60,
    )
    readable, _, _ = select.select([leader], [], [], 0.0)
    drawn = os.read(leader, 65536).decode() if readable else ""
    os.close(follower)
    os.close(leader)
    assert done.returncode == 0, drawn
    assert done.stdout == b"result\n"
    assert "walk" in drawn
    assert "/5" in drawn
