"""What a kept state belongs to: model, drafter, where the experts wait, and the machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from specfit_opt import __version__

from ..calibration import RuntimeProfile
from ..calibration.offload_setup import setup_of
from ..offload import model_name

if TYPE_CHECKING:
    from specfit_opt.policies import Policy
    from specfit_opt.routing_predictor import RoutingPredictor

    from ..drafters import Drafter
    from ..offload import Offload


def setup_key(
    model: Any,
    offload: Offload,
    policy: Policy,
    drafter: Drafter | None,
    predictor: RoutingPredictor,
    profile: RuntimeProfile | None,
) -> dict[str, Any]:
    """Return all that what is learned depends on, as plain values.

    Files count by name, size and time of their last change: what was learned of a model does not
    serve the one that was put in its place.

    Parameters
    ----------
    profile : RuntimeProfile or None
        The one that the caller gave; costs are learned in relation to it.
    """
    setup = asdict(setup_of(offload))
    setup["moved_bytes"] = sorted(set(setup["moved_bytes"]))
    folder = None if drafter is None else drafter.folder
    return {
        "specfit": __version__,
        "torch": torch.__version__,
        "model": model_name(model),
        "model files": _files(offload.index.files),
        "setup": setup,
        "store": offload.store.description,
        "slots": sorted(set(map(int, offload.cache.slots))),
        "cache policy": offload.cache.policy,
        "drafter": None if drafter is None else drafter.name,
        "drafter files": _files(() if folder is None else folder.glob("*.safetensors")),
        "policy": policy.name,
        "predictor": predictor.name,
        "profile": None if profile is None else _digest(profile.to_dict()),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(offload.device) if setup["device"] == "cuda" else None,
    }


def file_name(key: Mapping[str, Any]) -> str:
    """Return the name of the file for ``key``: the model's, for people, and a hash of all."""
    model = re.sub(r"[^A-Za-z0-9._-]+", "-", str(key["model"]).rpartition("/")[2])[:40]
    return f"{model.lstrip('.') or 'model'}-{_digest(key)}.npz"


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _files(paths: Iterable[Path]) -> list[list[Any]]:
    found = []
    for path in sorted(paths):
        status = path.stat()
        found.append([path.name, status.st_size, status.st_mtime_ns])
    return found


def _processor() -> str:
    """Return the processor's name, as Linux tells it, or as Python does elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else f"{platform.machine()} {platform.processor()}"
