"""Every kind of file that the product reads: how one comes to be, and what is done with it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from fuzz.byte_mutations import mutate_bytes
from fuzz.json_mutations import mutate_json
from fuzz.npz_mutations import mutate_npz
from fuzz.safetensors_mutations import mutate_safetensors


@dataclass(frozen=True)
class FileKind:
    """A file or folder that the product reads.

    Attributes
    ----------
    make : callable
        Writes it: given a folder.
    use : callable
        Reads it and does a little with it: given the folder.
    weight : float
        How many of its cases are run, compared to others: less where one takes long.
    """

    make: Callable[[Path], Any]
    use: Callable[[Path], Any]
    weight: float = 1.0

    def case(self, name: str, seed: int | None, folder: Path) -> Callable[[], Any]:
        """Write a damaged copy into ``folder`` and return what reads it."""
        rng = random.Random(f"{name} {seed}")
        files = _originals(name, self.make)
        for relative, content in files.items():
            path = folder / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if seed is None:
            return lambda: self.use(folder)
        relative = rng.choice(sorted(files))
        path = folder / relative
        content = files[relative]
        for _ in range(rng.choice([1, 1, 1, 2])):
            try:
                content = _mutated(relative, content, rng)
            except (ValueError, OSError, KeyError, IndexError, RuntimeError):
                content = mutate_bytes(content, rng)  # it cannot be read any more
            except Exception as error:  # of zipfile and zlib
                if type(error).__module__ not in ("zipfile", "zlib"):
                    raise
                content = mutate_bytes(content, rng)
        path.write_bytes(content)
        return lambda: self.use(folder)


@cache
def _originals(name: str, make: Callable[[Path], Any]) -> dict[str, bytes]:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make(folder)
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


def _mutated(name: str, content: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.25:
        return mutate_bytes(content, rng)
    if name.endswith((".json", ".jsonl")):
        return mutate_json(content.decode(), rng)
    if name.endswith(".npz"):
        return mutate_npz(content, rng)
    if name.endswith(".safetensors"):
        return mutate_safetensors(content, rng)
    return mutate_bytes(content, rng)


# ---- the optimisation library


def _make_instance(suffix: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        from specfit_opt import save_instance
        from specfit_opt.generate import generate

        save_instance(folder / f"a{suffix}", generate("tiny", seed=3))

    return make


def _use_instance(suffix: str) -> Callable[[Path], None]:
    def use(folder: Path) -> None:
        from specfit_opt import load_instance, solve_instance

        solve_instance(load_instance(folder / f"a{suffix}")).to_dict()

    return use


def _make_trace(folder: Path) -> None:
    from random_trace import random_trace

    from specfit_opt import save_trace

    save_trace(folder / "a.npz", random_trace(np.random.default_rng(4), sizes=True))


def _use_trace(folder: Path) -> None:
    from specfit_opt import CostModel, load_trace, solve_instance

    trace = load_trace(folder / "a.npz")
    solve_instance(trace.instance(0, CostModel(0.01, 0.001, 0.002)))
    trace.select(np.arange(trace.n_cycles) < 1)


def _make_hardware_profile(folder: Path) -> None:
    from importlib import resources

    shipped = resources.files("specfit_opt.profiles").joinpath("pcie4.json").read_text()
    figures = json.loads(shipped) | {"node_time": [0, 1e-3, None, 2e-3], "layer_repeat": 2}
    (folder / "p.json").write_text(json.dumps(figures))


def _use_hardware_profile(folder: Path) -> None:
    from specfit_opt.profiles import load_profile

    profile = load_profile(folder / "p.json")
    profile.cost_model(2, 4, 1_000_000, levels=3).expert_table(2, 4)


# ---- the runtime


def _make_runtime_profile(folder: Path) -> None:
    from samples import profile

    profile().save(folder / "p.json")


def _use_runtime_profile(folder: Path) -> None:
    from specfit_runtime.calibration import load_runtime_profile

    load_runtime_profile(folder / "p.json").cost_model()


def _kept_key() -> dict[str, Any]:
    return {"model": "a", "slots": [2]}


def _kept_memory() -> Any:
    """Return the memory of a decode of a model with 2 layers of 6 experts, which saw a pass."""
    from samples import profile

    from specfit_opt.control.acceptance_calibration import AcceptanceCalibrator
    from specfit_opt.control.correction import OnlineCorrection
    from specfit_opt.control.load_repayment import LoadRepayment
    from specfit_opt.policies import SpecFitPolicy
    from specfit_runtime.decode.memory import DecodeMemory
    from specfit_runtime.predictors import make_predictor

    own = profile()
    n_layers = own.setup.n_layers
    predictor = make_predictor("frequency")
    predictor.start(n_layers, 6, 2)
    predictor.observe([5, 7], np.ones((2, n_layers, 2), dtype=np.int32))
    policy = SpecFitPolicy()
    policy.repayment = LoadRepayment(n_layers, 6)
    calibrator = AcceptanceCalibrator()
    calibrator.observe([-1, 0], [1, 2], [1.0, 0.5], [0, 1], [2, 3])
    correction = OnlineCorrection(own.cost_model(), own.draft_time)
    return DecodeMemory(policy, None, predictor, calibrator, own, correction)


def _make_kept_state(folder: Path) -> None:
    _kept_memory().keep().save(folder / "a.npz", _kept_key())


def _use_kept_state(folder: Path) -> None:
    from types import SimpleNamespace

    from specfit_runtime.state.kept_state import load_kept_state

    kept = load_kept_state(folder / "a.npz", _kept_key())
    memory = _kept_memory()
    shape = SimpleNamespace(n_layers=memory.profile.setup.n_layers, n_experts=6, top_k=2)
    memory.restore(kept, shape)
    memory.correction.cost_model()
    memory.keep()


def _make_prompts(folder: Path) -> None:
    lines = ["Once upon a time", json.dumps({"prompt": "two\nlines"}), "größer", ""]
    (folder / "p.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / "p.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')


def _use_prompts(folder: Path) -> None:
    from specfit_runtime.cli.prompts import many_prompts, one_prompt

    for name in ("p.txt", "p.jsonl"):
        many_prompts(None, str(folder / name))
        one_prompt(None, str(folder / name))


def _make_network(folder: Path) -> None:
    import torch

    from specfit_runtime.predictors.routing_network import NetworkShape, RoutingNetwork
    from specfit_runtime.predictors.routing_network_files import save_network

    torch.manual_seed(0)
    network = RoutingNetwork(NetworkShape(2, 4, 2, 6, 5, 4, 4, 3))
    save_network(folder / "network", network, card="a card")


def _use_network(folder: Path) -> None:
    from specfit_runtime.predictors.routing_network_files import load_network

    load_network(folder / "network")


@cache
def _target() -> Any:
    from tiny_models import tiny_model

    return tiny_model("qwen3_moe")


def _make_eagle3(style: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        from tiny_drafters import tiny_eagle3

        tiny_eagle3(folder / "head", _target().config, style=style)

    return make


def _use_drafter(what: str) -> Callable[[Path], None]:
    def use(folder: Path) -> None:
        from specfit_runtime.drafters import make_drafter

        make_drafter(f"{what}:{folder / 'head'}").bind(_target())

    return use


def _make_lm(folder: Path) -> None:
    from tiny_drafters import tiny_lm

    tiny_lm(folder / "head", 160)


def _make_checkpoint(family: str, shards: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        from tiny_models import tiny_checkpoint

        tiny_checkpoint(family, folder / "model", shards=shards)

    return make


def _use_checkpoint(folder: Path) -> None:
    from specfit_runtime import load_offloaded, offload_of

    model = load_offloaded(folder / "model", expert_cache=2, io_threads=1)
    offload_of(model).close()


def _make_tokenizer(folder: Path) -> None:
    import shutil

    from specfit_runtime import demo_model

    (folder / "model").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_model() / name, folder / "model" / name)


def _use_tokenizer(folder: Path) -> None:
    from types import SimpleNamespace

    from specfit_runtime.cli.options import load_tokenizer
    from specfit_runtime.drafters.shared_vocabulary import _vocabulary

    _vocabulary(SimpleNamespace(name_or_path=str(folder / "model")))
    load_tokenizer(str(folder / "model"))


FILE_KINDS: dict[str, FileKind] = {
    "instance json": FileKind(_make_instance(".json"), _use_instance(".json"), 2),
    "instance npz": FileKind(_make_instance(".npz"), _use_instance(".npz"), 2),
    "trace": FileKind(_make_trace, _use_trace, 2),
    "hardware profile": FileKind(_make_hardware_profile, _use_hardware_profile),
    "runtime profile": FileKind(_make_runtime_profile, _use_runtime_profile),
    "kept state": FileKind(_make_kept_state, _use_kept_state, 2),
    "prompts": FileKind(_make_prompts, _use_prompts),
    "routing network": FileKind(_make_network, _use_network),
    "eagle3 specforge": FileKind(_make_eagle3("specforge"), _use_drafter("eagle3")),
    "eagle3 speculators": FileKind(_make_eagle3("speculators"), _use_drafter("eagle3")),
    "lm drafter": FileKind(_make_lm, _use_drafter("lm"), 0.3),
    "checkpoint": FileKind(_make_checkpoint("qwen3_moe", 2), _use_checkpoint, 0.5),
    "checkpoint gpt_oss": FileKind(_make_checkpoint("gpt_oss", 1), _use_checkpoint, 0.3),
    "tokenizer": FileKind(_make_tokenizer, _use_tokenizer, 0.2),
}
