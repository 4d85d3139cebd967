"""Hardware profiles: the shipped files, the reader's strictness and the cost models."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specfit_opt.errors import InvalidInputError
from specfit_opt.policies import FIXED_POLICIES, POLICIES
from specfit_opt.profiles import PROFILES, HardwareProfile, PolicyTime, load_profile
from specfit_opt.profiles.profile import parse_profile

GOOD: dict[str, Any] = {
    "version": 1,
    "name": "mine",
    "bandwidth": 1e10,
    "fixed_time": 0.02,
    "node_time": 1e-4,
    "draft_time": 1e-3,
}


def _text(**changes: Any) -> str:
    data = GOOD | changes
    return json.dumps({key: value for key, value in data.items() if value is not ...})


def test_shipped_profiles_from_the_slowest_link_to_none() -> None:
    assert list(PROFILES) == ["nvme", "pcie3", "pcie4", "pcie5", "hbm"]


@pytest.mark.parametrize("name", PROFILES)
def test_every_figure_of_a_shipped_profile_has_its_source(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.summary
    figures = {"fixed_time", "node_time", "draft_time", "prediction_time", "policy_time"}
    figures |= {f for f in ("bandwidth", "resident_bandwidth") if getattr(profile, f) is not None}
    assert set(profile.source) == figures
    assert all(len(text) > 20 for text in profile.source.values())
    # Neither is the machine's to say.
    assert profile.layer_repeat == 1
    assert profile.expert_bytes is None


def test_cost_model_of_a_link() -> None:
    profile = load_profile("pcie4")
    cost = profile.cost_model(2, 5, 9_437_184, levels=3)
    assert cost.fixed_time == pytest.approx(profile.fixed_time + 3 * profile.draft_time)
    assert cost.node_time == profile.node_time
    assert cost.expert_time == pytest.approx([9_437_184 / 24.8e9] * 2)
    assert cost.resident_time == 0.0


def test_a_cold_token_takes_what_is_reported_for_it() -> None:
    # 48 layers x 8 experts of 9.44 MB: 145 ms at 25 GB/s, 1.2 s from an NVMe drive.
    for name, seconds in (("pcie4", 0.145), ("nvme", 1.2)):
        cost = load_profile(name).cost_model(48, 128, 9_437_184)
        assert 8 * float(np.sum(cost.expert_time)) == pytest.approx(seconds, rel=0.02)


def test_the_fit_behind_hbm() -> None:
    # Published time of one MoE layer of Qwen3-30B-A3B on an H200 at 1, 16 and 256 tokens,
    # balanced routing: 40.27, 305.21, 339.33 us. The fixed part of a layer is 22.5 us.
    profile = load_profile("hbm")
    assert profile.experts_resident
    cost = profile.cost_model(48, 128, 9_437_184)
    assert isinstance(cost.node_time, float)
    for tokens, union, published in ((1, 8, 40.27), (16, 128, 305.21), (256, 128, 339.33)):
        layer = 22.5e-6 + union * cost.resident_time + tokens * cost.node_time / 48
        assert layer == pytest.approx(published * 1e-6, rel=0.04)


def test_bytes_per_layer_and_per_expert() -> None:
    profile = HardwareProfile(**_arguments(resident_bandwidth=1e12))
    layers = profile.cost_model(2, 3, [1_000_000, 3_000_000])
    assert layers.expert_time == pytest.approx([1e-4, 3e-4])
    assert layers.resident_time == pytest.approx(2e-6)  # of the mean size
    size = np.arange(1, 7).reshape(2, 3) * 1_000_000
    each = profile.cost_model(2, 3, size)
    assert isinstance(each.expert_time, np.ndarray)
    assert each.expert_time == pytest.approx(size / 1e10)


def test_layers_that_stand_for_several() -> None:
    profile = HardwareProfile(**_arguments(layer_repeat=6, expert_bytes=1_000_000))
    assert profile.cost_model(2, 3).expert_time == pytest.approx([6e-4, 6e-4])
    assert profile.cost_model(2, 3, layer_repeat=2).expert_time == pytest.approx([2e-4, 2e-4])
    assert profile.cost_model(2, 3, 5_000_000).expert_time == pytest.approx([3e-3, 3e-3])


def _arguments(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (GOOD | changes).items() if key != "version"}


def test_a_node_time_table() -> None:
    profile = parse_profile(_text(node_time=[0, 1e-3, None, 2e-3]), "x")
    assert profile.node_time == (0.0, 1e-3, math.inf, 2e-3)
    cost = profile.cost_model(1, 1, 1)
    assert cost.node_table(3).tolist() == [0.0, 1e-3, math.inf, 2e-3]
    assert HardwareProfile(**_arguments(node_time=np.array([0.0, 1.0]))).node_time == (0.0, 1.0)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(_text(summary="a machine", source={"bandwidth": "measured"}))
    profile = load_profile(str(path))
    assert profile == load_profile(path)
    assert profile.name == "mine"
    assert profile.source["bandwidth"] == "measured"
    assert load_profile(profile) is profile


def test_frozen_hashable_and_replaceable() -> None:
    profile = load_profile("pcie4")
    assert hash(profile) == hash(load_profile("pcie4"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        profile.bandwidth = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        profile.source["bandwidth"] = "guessed"  # type: ignore[index]
    faster = profile.replace(bandwidth=3e10)
    assert (faster.bandwidth, faster.fixed_time) == (3e10, profile.fixed_time)
    with pytest.raises(InvalidInputError, match="bandwidth must be a finite number of bytes per"):
        profile.replace(bandwidth=-1.0)


def test_what_policies_take_is_read_or_as_measured(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(_text(policy_time={"specfit": {"cycle": 1e-3, "level": 2e-3}}))
    own = load_profile(path)
    assert dict(own.policy_time) == {"specfit": PolicyTime(1e-3, 2e-3)}
    assert "policy_time" not in own.source  # the package cannot tell where it is from
    assert own.replace(name="other").policy_time == own.policy_time
    kinds = {kind.name.partition("-")[0] for kind in POLICIES.values()}
    fixed = {name.partition("-")[0] for name in FIXED_POLICIES}
    assert set(load_profile("pcie4").policy_time) == kinds - fixed
    with pytest.raises(InvalidInputError, match="cycle must be a finite number of seconds"):
        PolicyTime(-1.0, 0.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON, or cut short: Expecting property name"),
        ("[1]", "it must be an object, got a list of 1 entry"),
        ("3", "it must be an object, got 3"),
        (_text(version=...), "it lacks 'version'; the keys are version, name,"),
        (_text(version=2), "version must be 1, got 2"),
        (_text(bandwith=1), "it has the unknown key 'bandwith'; the keys are"),
        (_text(name=...), "it lacks 'name'; the keys are version, name,"),
        (_text(fixed_time=..., node_time=...), "it lacks 'fixed_time', 'node_time'; the keys are"),
        (_text(bandwidth=...), "bandwidth is missing: give the bytes per second of the link"),
        (_text(bandwidth=None), "bandwidth is missing"),
        (_text(bandwidth=0), "bandwidth must be a finite number of bytes per"),
        (_text(bandwidth="25 GB/s"), "bandwidth must be a finite number of bytes per"),
        (_text(bandwidth=True), "bandwidth must be a finite number of bytes per"),
        (_text(resident_bandwidth=-1), "resident_bandwidth must be a finite number of bytes"),
        (_text(fixed_time=-1), "fixed_time must be a finite number of seconds of at"),
        (_text(draft_time="1 ms"), "draft_time must be a finite number of seconds per"),
        (_text(node_time=[0, -1]), r"node_time\[1\] must be a finite number of seconds of"),
        (_text(node_time=[0, "x"]), r"node_time\[1\] must be a finite number of seconds of"),
        (_text(node_time=[0]), "table indexed by node count"),
        (_text(node_time=[0, None]), "node_time forbids every size"),
        (_text(node_time=-1), "node_time must be a finite number of seconds per"),
        (_text(prediction_time=-1), "prediction_time must be a finite number of seconds per"),
        (_text(policy_time=3), "policy_time must be an object, got 3"),
        (_text(policy_time={"ratio": 3}), r"policy_time\.ratio must be an object, got 3"),
        (_text(policy_time={"ratio": {"cycle": 1}}), r"policy_time\.ratio lacks 'level'"),
        (
            _text(policy_time={"ratio": {"cycle": 1, "level": -1}}),
            r"policy_time\.ratio\.level must be a finite number of seconds",
        ),
        (_text(name=""), "name must be a non-empty text"),
        (_text(name=3), "name must be a non-empty text"),
        (_text(summary=3), "summary must be a text"),
        (_text(source="a web page"), "source must be an object, got 'a web page'"),
        (_text(source={"bandwidth": 3}), r"source\.bandwidth must be a text, got 3"),
        (_text(layer_repeat=0), "layer_repeat must be a whole number of at least 1, got 0"),
        (_text(layer_repeat=1.5), "layer_repeat must be a whole number of at least 1, got 1.5"),
        (_text(expert_bytes=0), "expert_bytes must be a whole number of at least 1"),
        (_text(experts_resident=1), "experts_resident must be true or false, got 1"),
        (_text(experts_resident=True), "experts_resident needs resident_bandwidth"),
        ('{"version": 1, "version": 1}', "the key 'version' occurs twice in one object; keep"),
        (_text(fixed_time=math.nan), "NaN is no JSON number"),
        (_text(node_time=[0, 1, math.inf]), "Infinity is no JSON number; every figure must be"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_profile(path)
    assert str(caught.value).startswith(str(path))


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be read: No such file or directory"):
        load_profile(tmp_path / "none.json")
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInputError, match="not UTF-8 text: invalid start byte at byte 0"):
        load_profile(binary)
    with pytest.raises(
        InvalidInputError, match=r"'pcie9' is unknown; did you mean .* must end in \.json"
    ):
        load_profile("pcie9")
    with pytest.raises(InvalidInputError, match="is unknown"):
        load_profile("../profiles/pcie4")


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (None, "expert_bytes is unknown"),
        (-1, "must be positive"),
        (math.inf, "must be positive and finite"),
        ("9 MB", "must be numbers of bytes"),
        ([1, 2, 3], r"expert_bytes has shape \(3,\); give a number, shape \(2,\) or \(2, 5\)"),
    ],
)
def test_bad_expert_bytes(size: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        load_profile("pcie4").cost_model(2, 5, size)
