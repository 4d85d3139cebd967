"""Train the EAGLE-3 head by training-time test: each step reads the state made by the last."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from .batches import Batches, windows
from .drafter import DrafterShape, EagleHead
from .export import restore, round_to_export
from .loss import distribution_loss
from .model import FastMoe
from .optimizer import make_optimizers
from .schedule import Schedule
from .train import load_checkpoint, save_checkpoint

__all__ = ["DrafterPlan", "frequent_ids", "restore_drafter", "train_drafter", "unrolled_losses"]


@dataclass(frozen=True)
class DrafterPlan:
    """Everything that a drafter's run depends on besides the target and the data.

    Parameters
    ----------
    unroll
        Draft steps per position; step s has weight ``step_decay ** s``.
    steps
        All steps; with 0 the run goes on until the file ``finish-drafter`` starts the decay.
    """

    batch: int = 8
    warmup: int = 40
    steps: int = 0
    decay_steps: int = 300
    unroll: int = 4
    step_decay: float = 0.85
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    clip: float = 1.0
    seed: int = 2
    save_every: int = 50
    evaluate_every: int = 200


def train_drafter(folder: Path, shape: DrafterShape, plan: DrafterPlan) -> Path:
    """Train a head for ``target.pt`` in `folder`; resume ``drafter.pt`` there; return its path."""
    torch.manual_seed(plan.seed)
    target = round_to_export(restore(folder / "target.pt"))
    target.requires_grad_(False)
    length = target.shape.sequence
    kept = frequent_ids(np.load(folder / "train.npy"), target.shape.vocab_size, shape)
    head = EagleHead(target.shape, shape, kept)
    with torch.no_grad():
        head.lm_head.weight.copy_(target.embed[kept])
    optimizers = make_optimizers(head, plan.muon_lr, plan.adam_lr)
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["base"] = group["lr"]
    schedule = Schedule(
        plan.warmup, plan.steps - plan.decay_steps if plan.steps else None, plan.decay_steps
    )
    batches = Batches(folder / "train.npy", plan.batch, length, plan.seed)
    held_out: Tensor = _some_windows(np.load(folder / "heldout.npy"), length)
    checkpoint = folder / "drafter.pt"
    step = 0
    if checkpoint.exists():
        saved = load_checkpoint(checkpoint)
        head.load_state_dict(saved["head"])
        for name, optimizer in optimizers.items():
            optimizer.load_state_dict(saved["optimizers"][name])
        step = saved["step"]
        if saved["schedule"]["decay_start"] is not None:
            schedule = Schedule(**saved["schedule"])
    wall, seen = time.perf_counter(), step
    while schedule.end is None or step < schedule.end:
        if schedule.heed(folder / "finish-drafter", step):
            print(f"step {step}: decay over {schedule.decay_steps} steps", flush=True)
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["base"] * schedule.factor(step)
        losses, hits = unrolled_losses(head, target, batches.at(step), plan.unroll)
        weighted = [plan.step_decay**number * loss for number, loss in enumerate(losses)]
        torch.stack(weighted).sum().backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), plan.clip)
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 10 == 0:
            now = time.perf_counter()
            rate = (step - seen) * plan.batch * length / (now - wall)
            print(
                f"step {step} loss {' '.join(f'{float(loss.detach()):.3f}' for loss in losses)}"
                f" top-1 {' '.join(f'{hit:.3f}' for hit in hits)}"
                f" lr {schedule.factor(step):.3f} tokens/s {rate:.0f}",
                flush=True,
            )
            wall, seen = now, step
        last = step == schedule.end
        if step % plan.save_every == 0 or last:
            save_checkpoint(
                checkpoint,
                {
                    "head": head.state_dict(),
                    "optimizers": {name: opt.state_dict() for name, opt in optimizers.items()},
                    "schedule": asdict(schedule),
                    "step": step,
                    "kept": kept,
                    "shape": asdict(shape),
                    "plan": asdict(plan),
                },
            )
        if step % plan.evaluate_every == 0 or last:
            with torch.no_grad():
                losses, hits = unrolled_losses(head, target, held_out, plan.unroll)
            print(
                f"step {step} held-out loss {' '.join(f'{float(loss):.3f}' for loss in losses)}"
                f" top-1 {' '.join(f'{hit:.3f}' for hit in hits)}",
                flush=True,
            )
            wall = time.perf_counter()
    return checkpoint


def unrolled_losses(
    head: EagleHead, target: FastMoe, ids: Tensor, unroll: int
) -> tuple[list[Tensor], list[float]]:
    """Return each draft step's loss, and the share of positions where it finds the target's choice.

    The loss is the cross-entropy against the target's distribution over the draft vocabulary, at
    the positions whose most probable token is in it. The shares count the other positions as
    misses.

    Parameters
    ----------
    ids
        int64[B, S + 1].
    unroll
        Number of draft steps.
    """
    with torch.no_grad():
        logits, features = target.features(ids, head.shape.boundaries)
        best = logits.argmax(-1)
        chance = torch.softmax(logits[..., head.kept], dim=-1).to(torch.bfloat16)
    assert features is not None
    known = head.t2d[best]
    losses, hits = [], []
    length = ids.shape[1] - 1
    with torch.autocast("cpu", torch.bfloat16):
        states, context = head.fc(features[:, :length]).float(), None
        for number in range(unroll):
            # Position t holds the target's state of token t. Step s reads token t + 1 + s, and
            # drafts what the target makes of it. The last positions run out of text: `room` many
            # are scored.
            room = length - number
            embedded = functional.embedding(ids[:, 1 + number :], target.embed)
            embedded = functional.pad(embedded, (0, 0, 0, number))
            states, context = head.advance(embedded, states, context)
            final = head.norm(states[:, :room]).flatten(0, 1).to(torch.bfloat16)
            loss, guess = distribution_loss(
                final,
                head.lm_head.weight.to(torch.bfloat16),
                chance[:, 1 + number :].flatten(0, 1),
                known[:, 1 + number :].flatten(),
            )
            losses.append(loss)
            wanted = best[:, 1 + number :].flatten()
            hits.append(float((head.kept[guess] == wanted).float().mean()))
    return losses, hits


def frequent_ids(ids: NDArray[np.uint16], vocab_size: int, shape: DrafterShape) -> Tensor:
    """Return the most frequent ids, ascending; the end of text is always among them."""
    count = np.bincount(ids, minlength=vocab_size)
    count[0] = count.max() + 1
    top = np.argsort(-count, kind="stable")[: shape.draft_vocab_size]
    return torch.from_numpy(np.sort(top).astype(np.int64))


def restore_drafter(checkpoint: Path, target: FastMoe) -> EagleHead:
    """Return the head of a checkpoint, rounded to what is exported."""
    saved = load_checkpoint(checkpoint)
    raw = saved["shape"] | {"boundaries": tuple(saved["shape"]["boundaries"])}
    head = EagleHead(target.shape, DrafterShape(**raw), saved["kept"])
    head.load_state_dict(saved["head"])
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return head.eval()


def _some_windows(ids: NDArray[np.uint16], length: int, count: int = 16) -> Tensor:
    starts = np.linspace(0, len(ids) - length - 2, count).astype(np.int64)
    return windows(ids, starts, length + 1)
