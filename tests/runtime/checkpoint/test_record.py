"""The layout of a record in memory."""

from __future__ import annotations

import pytest
import torch

from specfit_runtime.checkpoint import PieceSlot, RecordLayout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_pieces_and_records_are_aligned(dtype: torch.dtype) -> None:
    layout = RecordLayout.of([("a", (3, 5)), ("b", (7,)), ("c", (64, 2))], dtype)
    assert [p.parameter for p in layout.pieces] == ["a", "b", "c"]
    assert all(p.offset * dtype.itemsize % 64 == 0 for p in layout.pieces)
    assert layout.n_bytes == layout.n_elements * dtype.itemsize
    assert layout.n_bytes % 64 == 0
    for before, after in zip(layout.pieces, layout.pieces[1:], strict=False):
        assert 0 <= after.offset - (before.offset + before.n_elements) < 64 // dtype.itemsize


def test_layout_worked_by_hand() -> None:
    layout = RecordLayout.of([("w", (3, 5)), ("b", (17,))], torch.float32)
    # 15 elements fill up to 16; 17 fill up to 32.
    assert layout == RecordLayout(
        (PieceSlot("w", (3, 5), 0), PieceSlot("b", (17,), 16)), 48, torch.float32
    )


def test_views_share_the_slab() -> None:
    layout = RecordLayout.of([("w", (3, 5)), ("b", (4,))], torch.float32)
    slab = torch.arange(2.0 * layout.n_elements).view(2, layout.n_elements)
    views = layout.views(slab)
    assert views["w"].shape == (2, 3, 5)
    assert views["b"].shape == (2, 4)
    assert views["w"][1, 2, 4] == slab[1, 14]
    slab[1, 16] = -1.0
    assert views["b"][1, 0] == -1.0
    assert views["w"].stride() == (layout.n_elements, 5, 1)
