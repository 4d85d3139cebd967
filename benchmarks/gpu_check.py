"""Check the CUDA path on the machine at hand, and print one table.

    python -m benchmarks.gpu_check [--small] [--minutes 8] [--only PART]... [--device cuda]

Parts, in this order: `equality` (tokens against stock generate, every family, store and some
policies, float32), `forward` (offloaded forward passes against stock grouped_mm), `copies` (the
pinned store against one large copy from page-locked memory, and what it locks), `overlap` (copies
beside compute), `decode` (a random model of the shape of Qwen3-30B-A3B, its experts in page-locked
host memory). `--small` takes small shapes. With `--device cpu`, which is always small, the same
code runs without a GPU, from a store in ordinary memory: for testing the script, its figures mean
nothing.

Ends with status 1 if something is unequal or an error came up, 2 without the device. When the time
is used up, what was not reached is listed as such, and so is what does not fit into the memory.
Rows are written to the error output as they come.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

PARTS = ("equality", "forward", "copies", "overlap", "decode")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--small", action="store_true", help="small shapes")
    parser.add_argument("--minutes", type=float, default=8.0, help="for everything (8)")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; may be repeated")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu (cuda)")
    args = parser.parse_args(arguments)
    if not args.minutes > 0.0:
        parser.error(f"--minutes must be positive, got {args.minutes}")
    # What imports torch lies in a folder that is no package: asv imports every module of the
    # package, also where only what its own benchmarks need is installed.
    from .gpu.runner import Missing, run

    try:
        return run(
            args.device,
            small=args.small or args.device == "cpu",
            seconds=60.0 * args.minutes,
            parts=[part for part in PARTS if part in (args.only or PARTS)],
        )
    except Missing as missing:
        print(f"gpu_check: {missing}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
