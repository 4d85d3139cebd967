"""Train the target; stop, resume and finish at any step."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .batches import Batches, windows
from .model import FastMoe
from .optimizer import make_optimizers
from .schedule import Schedule
from .shape import Shape

__all__ = ["TrainingPlan", "held_out_loss", "load_checkpoint", "save_checkpoint", "train"]


@dataclass(frozen=True)
class TrainingPlan:
    """Everything that a run depends on besides the data.

    Parameters
    ----------
    batch
        Sequences per step.
    warmup, steps, decay_steps
        The schedule; `steps` counts all. With `steps` 0 the run goes on until the file ``finish``
        in its folder, which holds a number of steps, starts the decay.
    balance
        Weight of the load-balancing loss of each layer.
    capacity_factor
        Room per expert as a multiple of the mean load.
    """

    batch: int = 16
    warmup: int = 150
    steps: int = 0
    decay_steps: int = 600
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    router_lr: float = 1e-3
    balance: float = 0.02
    capacity_factor: float = 2.0
    clip: float = 1.0
    seed: int = 1
    save_every: int = 100
    evaluate_every: int = 400


def train(folder: Path, shape: Shape, plan: TrainingPlan) -> Path:
    """Train on ``train.npy`` in `folder`, from ``target.pt`` there if it exists; return that path.

    The schedule counts steps, so that a run may be paused or starved without harm.
    """
    torch.manual_seed(plan.seed)
    model = FastMoe(shape)
    optimizers = make_optimizers(model, plan.muon_lr, plan.adam_lr, plan.router_lr)
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["base"] = group["lr"]
    decay_start = plan.steps - plan.decay_steps if plan.steps else None
    schedule = Schedule(plan.warmup, decay_start, plan.decay_steps)
    batches = Batches(folder / "train.npy", plan.batch, shape.sequence, plan.seed)
    held_out = np.load(folder / "heldout.npy")
    checkpoint = folder / "target.pt"
    step, processor_time = 0, 0.0
    if checkpoint.exists():
        saved = load_checkpoint(checkpoint)
        model.load_state_dict(saved["model"])
        for name, optimizer in optimizers.items():
            optimizer.load_state_dict(saved["optimizers"][name])
        step, processor_time = saved["step"], saved["processor_time"]
        if saved["schedule"]["decay_start"] is not None:
            schedule = Schedule(**saved["schedule"])
    begun = time.process_time() - processor_time
    wall, seen = time.perf_counter(), step
    dropped, loss_sum = 0.0, 0.0
    while schedule.end is None or step < schedule.end:
        if schedule.heed(folder / "finish", step):
            print(f"step {step}: decay over {schedule.decay_steps} steps", flush=True)
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["base"] * schedule.factor(step)
        ids = batches.at(step)
        result = model(ids[:, :-1], ids[:, 1:], plan.capacity_factor)
        (result.loss + plan.balance * result.balance).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step += 1
        loss_sum += float(result.loss.detach())
        dropped += result.dropped
        if step % 20 == 0:
            now = time.perf_counter()
            rate = (step - seen) * plan.batch * shape.sequence / (now - wall)
            busiest = result.load.max(1).values / result.load.float().mean(1)
            print(
                f"step {step} loss {loss_sum / (step - seen):.4f}"
                f" balance {float(result.balance.detach()) / shape.num_hidden_layers:.3f}"
                f" dropped {dropped / (step - seen):.4f} busiest {float(busiest.max()):.2f}"
                f" idle {int((result.load == 0).sum())} norm {float(norm):.2f}"
                f" lr {schedule.factor(step):.3f} tokens/s {rate:.0f}",
                flush=True,
            )
            wall, seen, dropped, loss_sum = now, step, 0.0, 0.0
        last = step == schedule.end
        if step % plan.save_every == 0 or last:
            save_checkpoint(
                checkpoint,
                {
                    "model": model.state_dict(),
                    "optimizers": {name: opt.state_dict() for name, opt in optimizers.items()},
                    "schedule": asdict(schedule),
                    "step": step,
                    "processor_time": time.process_time() - begun,
                    "shape": asdict(shape),
                    "plan": asdict(plan),
                },
            )
        if step % plan.evaluate_every == 0 or last:
            loss = held_out_loss(model, held_out, shape.sequence, limit=64)
            print(f"step {step} held-out {loss:.4f} (64 windows)", flush=True)
            wall = time.perf_counter()
    return checkpoint


@torch.no_grad()
def held_out_loss(
    model: FastMoe, ids: np.ndarray[Any, Any], sequence: int, limit: int | None = None
) -> float:
    """Return the mean loss over evenly spaced windows, nothing dropped."""
    starts = np.arange(0, len(ids) - sequence - 1, sequence)
    if limit is not None and len(starts) > limit:
        starts = starts[np.linspace(0, len(starts) - 1, limit).astype(np.int64)]
    losses = []
    for begin in range(0, len(starts), 16):
        some: Tensor = windows(ids, starts[begin : begin + 16], sequence + 1)
        losses += [float(model(some[:, :-1], some[:, 1:], None).loss)] * len(some)
    return float(np.mean(losses))


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write whole or not at all."""
    partial = path.with_suffix(".partial")
    torch.save(content, partial)
    os.replace(partial, path)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote."""
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content
