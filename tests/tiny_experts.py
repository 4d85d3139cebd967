"""Random experts in files, with an index of them that is written here and not by the package."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from specfit_runtime.checkpoint import ByteRange, ExpertIndex, RecordLayout

LAYOUTS = ("per-expert", "fused")


@dataclass(frozen=True)
class TinyExperts:
    """What the files hold: the index, and every expert's pieces in the run dtype."""

    index: ExpertIndex
    pieces: dict[tuple[int, int], dict[str, torch.Tensor]]

    def slots(self, n: int, layer: int = 0) -> torch.Tensor:
        """A slab of ``n`` slots of ones: none of them holds an expert."""
        layout = self.index.layouts[layer]
        return torch.ones(n, layout.n_elements, dtype=layout.dtype)

    def holds(self, slot: torch.Tensor, layer: int, expert: int) -> bool:
        """Whether the slot holds that expert, bit for bit."""
        views = self.index.layouts[layer].views(slot.cpu().unsqueeze(0))
        return all(
            torch.equal(views[name][0].contiguous().view(torch.uint8), piece.view(torch.uint8))
            for name, piece in self.pieces[layer, expert].items()
        )


def write_experts(
    folder: Path,
    *,
    layout: str = "per-expert",
    stored: torch.dtype = torch.bfloat16,
    run: torch.dtype | None = None,
    n_layers: int = 2,
    n_experts: int = 6,
    hidden: int = 10,
    inner: int = 6,
    n_files: int = 2,
    shift: int = 0,
) -> TinyExperts:
    """Write experts of gate, up and down projections, and index them.

    Tensors go to the files in turn, so that with two files an expert lies in both. ``shift`` bytes
    before everything move the tensors to odd places.
    """
    run = stored if run is None else run
    rng = torch.Generator().manual_seed(8)
    gate_up = torch.randn(n_layers, n_experts, 2 * inner, hidden, generator=rng).to(stored)
    down = torch.randn(n_layers, n_experts, hidden, inner, generator=rng).to(stored)
    record = RecordLayout.of(
        [("gate_up_proj", (2 * inner, hidden)), ("down_proj", (hidden, inner))], run
    )
    at_down = record.pieces[1].offset

    # Per tensor: its name, the tensor, and (expert, element of the record, elements) for its parts.
    tensors: list[tuple[str, torch.Tensor, list[tuple[int, int, int]]]] = []
    half, n_down = inner * hidden, hidden * inner
    for layer in range(n_layers):
        if layout == "fused":
            experts = range(n_experts)
            tensors += [
                (f"{layer}.gate_up", gate_up[layer], [(e, 0, 2 * half) for e in experts]),
                (f"{layer}.down", down[layer], [(e, at_down, n_down) for e in experts]),
            ]
        else:
            for e in range(n_experts):
                gate, up = gate_up[layer, e].chunk(2)
                tensors += [
                    (f"{layer}.{e}.gate", gate, [(e, 0, half)]),
                    (f"{layer}.{e}.up", up, [(e, half, half)]),
                    (f"{layer}.{e}.down", down[layer, e], [(e, at_down, n_down)]),
                ]

    ranges: dict[tuple[int, int], list[ByteRange]] = {}
    paths = []
    for number in range(n_files):
        mine = tensors[number::n_files]
        paths.append(folder / f"experts-{number}.safetensors")
        save_file({name: tensor.contiguous() for name, tensor, _ in mine}, paths[-1])
        content = paths[-1].read_bytes()
        header = int.from_bytes(content[:8], "little")
        where = json.loads(content[8 : 8 + header])
        paths[-1].write_bytes(bytes(shift) + content)
        for name, _, parts in mine:
            offset = shift + 8 + header + where[name]["data_offsets"][0]
            for expert, at, n in parts:
                n_bytes = n * stored.itemsize
                key = int(name.partition(".")[0]), expert
                ranges.setdefault(key, []).append(ByteRange(number, offset, n_bytes, stored, at))
                offset += n_bytes

    size = (2 * half + n_down) * stored.itemsize
    index = ExpertIndex(
        files=tuple(paths),
        layouts=(record,) * n_layers,
        byte_ranges=tuple(
            tuple(tuple(ranges[layer, e]) for e in range(n_experts)) for layer in range(n_layers)
        ),
        n_experts=n_experts,
        top_k=2,
        stored_bytes=np.full(n_layers, size, dtype=np.int64),
        record_bytes=np.full(n_layers, record.n_bytes, dtype=np.int64),
    )
    pieces = {
        (layer, e): {
            "gate_up_proj": gate_up[layer, e].to(run),
            "down_proj": down[layer, e].to(run),
        }
        for layer, e in product(range(n_layers), range(n_experts))
    }
    return TinyExperts(index, pieces)
