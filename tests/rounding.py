"""How near to one another two ways of adding up the same products are.

The order in which a matrix product adds depends on the processor's kernels, on the number of rows
and threads and, with some kernels, on whether operands start at multiples of 16 bytes: a row
computed alone has other last bits than the same row among others, and so has one whose weights were
shifted by one float. What such products lead to is compared to the bounds below. Bits are asked for
only where shapes and alignment are the same by construction, or in a process with `REPRODUCIBLE`
kernels.
"""

from __future__ import annotations

import torch

#: Of results in single precision: the largest difference, as a share of the largest element. One
#: rounding is 6e-8 of a number. In the tiny models of the tests a logit is the end of some twenty
#: products, one after the other, of up to 160 terms each; 250 roundings in the same direction are
#: allowed for. Up to 70 were seen, with `MKL_CBWR=COMPATIBLE`, and 30 with other kernels. What the
#: tests look for (a wrong expert, a key too many) moves results by more than a hundredth.
FP32 = 1.5e-5

#: Of the logarithms of probabilities whose logits reach 30 and differ by `FP32` of that: twice the
#: difference, since that of what they are divided by adds to their own.
LOG_PROBABILITY = 2.0 * 30.0 * FP32
#: Of the probabilities: p (1 - p) times that.
PROBABILITY = 0.25 * LOG_PROBABILITY

#: The environment of a process whose products are the same on every processor, whatever lies where.
#: oneDNN, which multiplies in half precision, knows no such variable: `plain_products` is for it.
REPRODUCIBLE = {
    "MKL_CBWR": "COMPATIBLE",
    "ATEN_CPU_CAPABILITY": "default",
    "OMP_NUM_THREADS": "1",
}


def plain_products() -> None:
    """Let torch itself compute, in this process, what it would have left to oneDNN."""
    torch.backends.mkldnn.set_flags(_enabled=False)


@torch.no_grad()
def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference as a share of the largest expected element."""
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / expected.abs().max())


def assert_same_to_rounding(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Assert that two results in single precision differ by `FP32` at most."""
    assert found.dtype == expected.dtype == torch.float32
    assert relative(found, expected) <= FP32


def assert_no_near_ties(logits: torch.Tensor, least: float = 2.0 * FP32) -> None:
    """Assert that rounding cannot make another token the most probable one.

    What holds greedy tokens to those of another computation relies on it.

    Parameters
    ----------
    logits : Tensor, shape (..., V)
    least : float
        Distance of the best two, as a share of the largest logit.
    """
    best = logits.detach().topk(2, dim=-1).values
    gap = float((best[..., 0] - best[..., 1]).min() / logits.abs().max())
    assert gap > least, f"two tokens are {gap:.1e} of the largest logit apart"
