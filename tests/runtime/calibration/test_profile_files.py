"""Runtime profiles: the file round trip, the reader's strictness, cost models, the fit check."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from samples import profile, setup

from specfit_opt.errors import InvalidInputError
from specfit_runtime.calibration import (
    Quartiles,
    RuntimeProfile,
    load_runtime_profile,
)


def text(**changes: Any) -> str:
    """Return the file of :func:`profile`, some keys changed; ... leaves a key out."""
    data = profile().to_dict() | changes
    return json.dumps({key: value for key, value in data.items() if value is not ...})


# ---- round trip


def test_a_file_gives_back_the_profile(tmp_path: Path) -> None:
    for original in (
        profile(),
        profile(setup=setup(link_bandwidth=2.5e9, store="emulated-disk")),
        profile(
            drafter=None,
            draft_time=(),
            draft_quartiles=Quartiles((), (), ()),
        ),
        profile(setup=setup(device="cuda")),
    ):
        path = tmp_path / "mine.json"
        original.save(path)
        assert load_runtime_profile(path) == original
        assert load_runtime_profile(str(path)) == original
        assert hash(load_runtime_profile(path)) == hash(original)
        assert os.listdir(tmp_path) == ["mine.json"]
    assert load_runtime_profile(original) is original


def test_the_file_is_plain_json_with_its_version(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    profile().save(path)
    data = json.loads(path.read_text())
    assert data["version"] == 2
    assert (data["fixed_time"], data["node_time"]) == (0.010, 0.001)
    assert data["setup"]["link_bandwidth"] is None
    assert set(data) == {"version", *(f.name for f in dataclasses.fields(RuntimeProfile))}


def test_every_float_survives(tmp_path: Path) -> None:
    third = profile(fixed_time=1 / 3 + 1e-16, node_time=math.nextafter(0.7, 1))
    third.save(tmp_path / "mine.json")
    read = load_runtime_profile(tmp_path / "mine.json")
    assert (read.fixed_time, read.node_time) == (third.fixed_time, third.node_time)


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        profile().repeats = 9  # type: ignore[misc]
    with pytest.raises(InvalidInputError, match="repeats must be a whole number"):
        dataclasses.replace(profile(), repeats=0)


# ---- bad files

_S = profile().to_dict()["setup"]
_E: dict[str, list[float]] = {"lower": [], "median": [], "upper": []}
_Q = {"lower": [0.1, 0.1], "median": [0.2, 0.2], "upper": [0.3, 0.3]}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "no JSON, or cut short: Expecting property name"),
        ("[" * 100_000, "lists and objects are nested 100000 deep; at most"),
        ("[1]", "it must be an object, got a list of 1 entry"),
        ("3", "it must be an object, got 3"),
        ("null", "it must be an object, got null"),
        ("true", "it must be an object, got true"),
        (text(version=...), "it lacks 'version'; the keys are version, name,"),
        (text(version=1), "version must be 2, got 1"),
        (text(version=True), "version must be 2, got true"),
        ('{"version": 1, "version": 1}', "the key 'version' occurs twice in one object; keep"),
        (text().replace('"top_k": 2', '"top_k": 2, "top_k": 4'), "the key 'top_k' occurs"),
        (text(node_times=[]), "unknown key 'node_times'; the keys are "),
        (text(repeats=...), "it lacks 'repeats'; the keys are version, name,"),
        (text(drafter=..., repeats=...), "it lacks 'drafter', 'repeats'; the keys are version,"),
        (text(name=""), "name must be a non-empty text"),
        (text(setup=_S | {"store": 3}), r"setup\.store must be a non-empty text, got 3"),
        (text(setup=_S | {"dtype": None}), r"setup\.dtype must be a non-empty text"),
        (text(setup=None), "setup must be an object, got null"),
        (text(setup={"type": "x"}), "setup lacks 'n_layers', 'n_experts', 'top_k',"),
        (text(setup=_S | {"host": "x"}), "setup has the unknown key 'host'; the keys are"),
        (text(setup=_S | {"n_experts": 0}), r"setup\.n_experts must be"),
        (text(setup=_S | {"n_experts": "2"}), r"setup\.n_experts must be"),
        (text(setup=_S | {"top_k": 1.5}), r"setup\.top_k must be a whole"),
        (text(setup=_S | {"n_layers": 3}), r"setup\.moved_bytes has 2 entries but setup\.n_layers"),
        (text(setup=_S | {"link_bandwidth": 0}), "link_bandwidth must be a finite number of bytes"),
        (text(setup=_S | {"link_bandwidth": -1}), "link_bandwidth must be a finite number of byte"),
        (text(setup=_S | {"link_bandwidth": "1 GB/s"}), "link_bandwidth must be a finite number"),
        (text(repeats=0), "repeats must be a whole number of at least 1, got 0"),
        (text(repeats=True), "repeats must be a whole number of at least 1, got"),
        (text(prefix_tokens=-1), "prefix_tokens must be a whole number of at least 0,"),
        (text(node_time=[1]), "node_time must be a finite number of seconds per token"),
        (text(node_time="3"), "node_time must be a finite number of seconds per token"),
        (text(fixed_time=-3), "fixed_time must be a finite number of seconds of"),
        (text(fixed_time=0, node_time=0), "a pass over one token takes time"),
        (text(node_time=math.nan), "NaN is no JSON number; every figure must be finite"),
        (text(node_time=math.inf), "Infinity is no JSON number"),
        (text().replace("0.001,", "1e999,", 1), "the number '1e999' is out of range in line 1,"),
        (text(node_time=10**400), "a number of 401 characters in line 1, column "),
        (text(node_sizes=[1, 2]), "node_quartiles has 3 entries but node_sizes calls for 2"),
        (text(node_sizes=[1, 4, 2]), "node_sizes must rise"),
        (text(node_sizes=[1, 1, 4]), "node_sizes must rise"),
        (text(node_sizes=[2, 3, 4]), "node_sizes must rise"),
        (text(node_sizes=[]), "node_sizes must be a list of at least 1"),
        (text(node_sizes=[1, 2.5, 4]), r"node_sizes\[1\] must be a whole number"),
        (text(node_misses=[0, 0]), "node_misses has 2 entries but node_sizes calls for 3"),
        (text(node_quartiles=_Q), "node_quartiles has 2 entries but node_sizes calls for 3"),
        (text(node_quartiles=[]), "node_quartiles must be an object, got a list"),
        (text(node_quartiles={"lower": []}), "node_quartiles lacks 'median', 'upper'; the keys"),
        (text(draft_quartiles=_Q | {"upper": [1]}), "draft_quartiles: lower, median and upper hav"),
        (text(draft_quartiles=_Q | {"upper": [1, 0]}), "draft_quartiles: quartiles 1 are 0.1, 0.2"),
        (text(draft_quartiles=_Q | {"upper": [1, "x"]}), r"upper\[1\] must be a finite"),
        (text(draft_time=[0.1]), "draft_quartiles has 2 entries but draft_time calls for 1"),
        (text(drafter=None), "drafter is null, so draft_time must be empty"),
        (text(draft_time=[], draft_quartiles=_E), "is 'eagle3', so draft_time must have an"),
        (text(drafter=""), "drafter must be a non-empty text"),
        (text(expert_time=[0.1]), "expert_time has 1 entries but setup.n_layers calls for 2"),
        (text(expert_time=[0.1, -0.1]), r"expert_time\[1\] must be a finite number of seconds"),
        (text(handling_time=-1), "handling_time must be a finite number of seconds of"),
        (text(setup=_S | {"moved_bytes": [1000]}), "moved_bytes has 1 entries but setup.n_layers"),
        (text(setup=_S | {"moved_bytes": [1000, 0]}), r"moved_bytes\[1\] must be a whole number"),
        (text(expert_quartiles=_E), "expert_quartiles has 0"),
    ],
)
def test_bad_files(tmp_path: Path, bad: str, message: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(bad)
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_runtime_profile(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be read: No such file or directory"):
        load_runtime_profile(tmp_path / "none.json")
    with pytest.raises(InvalidInputError, match=f"{tmp_path.name}: cannot be read: Is a"):
        load_runtime_profile(tmp_path)
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInputError, match="not UTF-8 text: invalid start byte at byte 0"):
        load_runtime_profile(binary)


def test_every_key_is_required(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    for key in profile().to_dict():
        path.write_text(text(**{key: ...}))
        with pytest.raises(InvalidInputError, match=key):
            load_runtime_profile(path)


# ---- writing


def test_only_json_names(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"mine\.txt: the name of a profile must end in"):
        profile().save(tmp_path / "mine.txt")
    with pytest.raises(FileNotFoundError, match="cannot be written: No such file"):
        profile().save(tmp_path / "no" / "mine.json")
    assert os.listdir(tmp_path) == []


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file grow beyond 512 bytes: the system's own error in the middle of writing.

    Not a fixture, which would end after the test is reported, perhaps into a file.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_write_that_the_system_refuses(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("old")
    refused = pytest.raises(OSError, match="cannot be written: File too large")
    with refused as caught, full_disk():
        profile().save(path)
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["mine.json"]


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    path = tmp_path / "mine.json"
    with pytest.raises(OSError, match="cannot be written: No space left on device") as caught:
        profile().save(path)
    assert caught.value.filename == str(path)
    assert os.listdir(tmp_path) == []


# ---- cost models


def test_the_cost_model_is_the_line() -> None:
    cost = profile().cost_model()
    assert (cost.fixed_time, cost.node_time) == (0.010, 0.001)
    assert isinstance(cost.expert_time, np.ndarray)
    assert cost.expert_time.tolist() == [0.001, 0.002]
    assert cost.resident_time == 0.0


def test_quartiles_of_samples() -> None:
    quartiles = Quartiles.of([[3.0, 1.0, 2.0], [5.0]])
    assert quartiles == Quartiles((1.5, 5.0), (2.0, 5.0), (2.5, 5.0))
    assert len(quartiles) == 2
    assert len(Quartiles.of([])) == 0


# ---- the model at hand


def offload(**changes: Any) -> Any:
    figures: dict[str, Any] = {
        "type": "qwen3_moe",
        "n_layers": 2,
        "n_experts": 8,
        "top_k": 2,
        "dtype": "torch.bfloat16",
        "device": "cpu",
        "store": "disk",
        "bandwidth": None,
        "moved_bytes": np.array([1000, 2000]),
    }
    figures |= changes
    store = SimpleNamespace(
        name=figures["store"],
        bandwidth=figures["bandwidth"],
        moved_bytes=figures["moved_bytes"],
    )
    return SimpleNamespace(
        family=SimpleNamespace(name=figures["type"]),
        store=store,
        **{key: figures[key] for key in ("n_layers", "n_experts", "top_k", "dtype", "device")},
    )


def test_a_profile_fits_the_model_it_was_measured_on() -> None:
    profile().check_fits(offload())
    profile(name="other").check_fits(offload())
    profile(setup=setup(link_bandwidth=1e9)).check_fits(offload(bandwidth=1e9))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "mixtral"}, r"type qwen3_moe \(here mixtral\)"),
        ({"n_layers": 3, "moved_bytes": [1000] * 3}, r"n_layers 2 \(here 3\)"),
        ({"n_experts": 16}, r"n_experts 8 \(here 16\)"),
        ({"top_k": 4}, r"top_k 2 \(here 4\)"),
        ({"dtype": "torch.float32"}, r"dtype bfloat16 \(here float32\)"),
        ({"device": "cuda"}, r"device cpu \(here cuda\)"),
        ({"store": "ram"}, r"store disk \(here ram\)"),
        ({"bandwidth": 1e9}, r"link_bandwidth None \(here 1000000000.0\)"),
        ({"moved_bytes": [1000, 3000]}, r"moved_bytes 1000 to 2000 \(here 1000 to 3000\)"),
        ({"moved_bytes": [1000, 1000]}, r"moved_bytes 1000 to 2000 \(here 1000\)"),
        ({"store": "ram", "top_k": 4}, r"top_k 2 \(here 4\), store disk \(here ram\); calibrate"),
    ],
)
def test_another_set_up_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        profile().check_fits(offload(**changes))
    assert "profile tiny on disk was measured on another set-up" in str(caught.value)


def test_draft_times_are_of_one_kind_of_drafter() -> None:
    profile().check_drafter("eagle3")
    profile().check_drafter(None)
    with pytest.raises(InvalidInputError, match="measured with eagle3, so it does not know what"):
        profile().check_drafter("lm")
    without = profile(
        drafter=None,
        draft_time=(),
        draft_quartiles=Quartiles((), (), ()),
    )
    without.check_drafter(None)
    with pytest.raises(InvalidInputError, match="measured without a drafter, so it does not know"):
        without.check_drafter("prompt-lookup")
