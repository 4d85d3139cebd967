"""Headers of safetensors files, whole and damaged."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from specfit_runtime.checkpoint import Checkpoint, read_header
from specfit_runtime.errors import CheckpointError


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(begin: int, end: int, shape: list[int] | None = None, dtype: str = "F32") -> dict:
    shape = [(end - begin) // 4] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_what_the_library_writes_is_read_back(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3, 4),
        "b": torch.randn(5).to(torch.bfloat16),
        "c": torch.arange(6),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "mask": torch.tensor([True, False]),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    header = read_header(tmp_path / "model.safetensors")
    assert set(header) == set(tensors)
    assert all(header[k].shape == tuple(v.shape) for k, v in tensors.items())
    assert all(header[k].dtype == v.dtype for k, v in tensors.items())
    read = dict(Checkpoint(tmp_path).read(tensors))
    assert all(torch.equal(read[k], v) and read[k].dtype == v.dtype for k, v in tensors.items())


def test_a_type_that_is_not_served_is_named_when_it_is_read(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"x": entry(0, 4, [4], "F8_E4M3")}, b"1234")
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.tensors["x"].dtype is None
    with pytest.raises(CheckpointError, match=r"x in .* is stored as F8_E4M3"):
        list(checkpoint.read(["x"]))


@given(data=st.data())
def test_any_cut_is_noticed(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("cut") / "model.safetensors"
    save_file({"a": torch.ones(3, 4), "b": torch.ones(7)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(CheckpointError, match=r"truncated: it has \d+ bytes"):
        read_header(path)


@given(data=st.data())
def test_damage_never_leads_outside_the_file(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damage") / "model.safetensors"
    save_file({"a": torch.ones(3, 4), "b": torch.ones(7)}, path)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, 8 + int.from_bytes(content[:8], "little") - 1))
    content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        header = read_header(path)
    except CheckpointError:
        return
    for tensor in header.values():
        assert 8 <= tensor.offset <= tensor.offset + tensor.n_bytes <= len(content)
        if tensor.dtype is not None:
            assert math.prod(tensor.shape) * tensor.dtype.itemsize == tensor.n_bytes


@pytest.mark.parametrize(
    "header",
    [
        b"{not json",
        b"\xff\xfe",
        [],
        {"x": 3},
        {"x": {"dtype": "F32", "shape": [1]}},
        {"x": entry(0, 4, [2])},
        {"x": entry(4, 0, [1])},
        {"x": entry(-4, 0, [1])},
        {"x": entry(0, 4, [-1])},
        {"x": entry(0, 4, [True])},
        {"x": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}},
        {"x": {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}},
    ],
)
def test_malformed_headers_are_refused(tmp_path: Path, header: Any) -> None:
    path = write(tmp_path / "model.safetensors", header, b"1234")
    with pytest.raises(CheckpointError, match="its header is malformed"):
        read_header(path)


@pytest.mark.parametrize("second", [entry(8, 12), entry(2, 6)])
def test_gaps_and_overlaps_are_refused(tmp_path: Path, second: dict) -> None:
    path = write(tmp_path / "x.safetensors", {"a": entry(0, 4), "b": second}, b"0" * 12)
    with pytest.raises(CheckpointError, match="gaps between tensors"):
        read_header(path)


def test_bytes_after_the_last_tensor_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {"a": entry(0, 4)}, b"12345")
    with pytest.raises(CheckpointError, match=r"has \d+ bytes, but its header says"):
        read_header(path)


def test_a_pointer_in_place_of_the_file_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(CheckpointError, match="Git LFS pointer"):
        read_header(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"absent\.safetensors: cannot be read: No such file"):
        read_header(tmp_path / "absent.safetensors")


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(64)}, path)
    checkpoint = Checkpoint(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="became shorter"):
        list(checkpoint.read(["a"]))
