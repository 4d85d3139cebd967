"""A checkpoint folder: its safetensors files and the tensors they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from specfit_opt.checks import Text, shown
from specfit_opt.files.strict_json import read_json
from specfit_opt.schema import MapOf, Record

from ..errors import CheckpointError
from .header import StoredTensor, read_header

_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
#: Bytes of an index: some 100 per tensor.
_MAX_INDEX = 2**26
_FETCH = "fetch the checkpoint again"


class Checkpoint:
    """The tensors of a checkpoint folder, found but not read.

    Parameters
    ----------
    folder : Path
        Holds ``model.safetensors``, or ``model.safetensors.index.json`` and the shards it names.

    Attributes
    ----------
    folder : Path
    tensors : dict of str to StoredTensor
        By key, as the files call them.

    Raises
    ------
    CheckpointError
        If a file is missing, malformed or not of the length that its header says, or a shard lacks
        a tensor that the index promises.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # In this order, like Transformers.
        if (folder / _WHOLE).is_file():
            self.tensors = read_header(folder / _WHOLE)
        elif (folder / _INDEX).is_file():
            self.tensors = _read_shards(folder, _weight_map(folder / _INDEX))
        else:
            raise CheckpointError(_nothing_found(folder))

    def read(self, keys: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Read tensors, in the order in which they lie in the files.

        The memory is the caller's own; nothing stays open or mapped.

        Raises
        ------
        CheckpointError
            If a file cannot be read or a tensor has an element type that is not served.
        """
        wanted = sorted(keys, key=lambda key: (self.tensors[key].file, self.tensors[key].offset))
        for key in wanted:
            yield key, _read_tensor(key, self.tensors[key])


def _read_tensor(key: str, stored: StoredTensor) -> Tensor:
    if stored.dtype is None:
        raise CheckpointError(
            f"{key} in {stored.file} is stored as {stored.dtype_name}, which is not served; load a "
            "checkpoint in bf16, fp16 or fp32"
        )
    # Not a view of a file mapping: that would keep the file's pages in memory.
    memory = torch.empty(stored.n_bytes, dtype=torch.uint8, device="cpu")
    try:
        with stored.file.open("rb", buffering=0) as file:
            file.seek(stored.offset)
            view, at = memoryview(memory.numpy().data), 0
            while at < stored.n_bytes:
                count = file.readinto(view[at:])
                if not count:
                    raise CheckpointError(f"{stored.file} became shorter while it was read")
                at += count
    except OSError as error:
        raise CheckpointError(f"cannot read {stored.file}: {error.strerror or error}") from error
    return memory.view(stored.dtype).view(stored.shape)


def _read_shards(folder: Path, place: dict[str, str]) -> dict[str, StoredTensor]:
    names = sorted(set(place.values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{_listed(missing)} of the {len(names)} shards that {folder / _INDEX} names "
            f"{'is' if len(missing) == 1 else 'are'} missing; {_FETCH}"
        )
    tensors: dict[str, StoredTensor] = {}
    for name in names:
        # Where two shards hold the same key, the index says which one counts.
        found = read_header(folder / name).items()
        tensors.update({key: stored for key, stored in found if place.get(key, name) == name})
    lost = [key for key in place if key not in tensors]
    if lost:
        raise CheckpointError(
            f"{folder / place[lost[0]]} does not hold {lost[0]}, which {_INDEX} says it does "
            f"({len(lost)} such tensor(s)); {_FETCH}"
        )
    return tensors


def _weight_map(path: Path) -> dict[str, str]:
    kind = Record({"weight_map": MapOf(Text())}, others=True)
    place: dict[str, str] = read_json(path, kind, limit=_MAX_INDEX, error=CheckpointError)[
        "weight_map"
    ]
    if not place:
        raise CheckpointError(f"{path}: weight_map names no tensor; {_FETCH}")
    for name in set(place.values()):
        # What lies in the folder may be a link elsewhere, as in the hub's cache; a name may not.
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts or "\0" in name:
            raise CheckpointError(
                f"{path}: weight_map names {shown(name)}, which is outside the folder; shards lie "
                "beside their index"
            )
    return place


def _nothing_found(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    said = f"{folder} holds neither {_WHOLE} nor {_INDEX}"
    if any(name.endswith((".bin", ".pt", ".pth")) for name in names):
        return (
            f"{said}, only weights in PyTorch's pickle format, of which no part can be read by "
            "itself; convert them once with from_pretrained and save_pretrained"
        )
    if any(name.endswith(".gguf") for name in names):
        return f"{said}, only GGUF files, which are not served; load a safetensors checkpoint"
    found = [name for name in names if name.endswith(".safetensors")]
    if found:
        return f"{said}; it does hold {_listed(found)}, whose index is missing; {_FETCH}"
    return f"{said}; give the folder of a safetensors checkpoint"


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
