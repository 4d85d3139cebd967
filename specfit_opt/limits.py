"""The range of numbers and the sizes of problems that specfit takes.

Inside the range no sum, product or quotient that the methods form can overflow or vanish: the
longest pass takes less than 1e19 seconds and the shortest 1e-12, so that ratios lie between 1e-19
and 1e18 tokens per second, and all products of two such figures far inside double precision (the
section "Numbers" of the theory page). Entries may be as small as they like, as long as a pass
takes its least time. The sizes bound what a number in the input can make specfit allocate: 256 MiB
of packed rows, and arrays over layers and experts of 32 MiB.
"""

from __future__ import annotations

import math

from .checks import Maybe, Real, shown
from .errors import InvalidInputError

#: Most seconds of any one time; only ``node_time`` may hold inf, for a size that is not allowed.
MOST_SECONDS = 1e12
#: Least seconds of a pass: ``fixed_time`` and the ``node_time`` of every allowed size.
LEAST_PASS = 1e-12
#: Most tokens per second of a rate; no pass can reach more.
MOST_RATE = 1e18

#: Any one time.
SECONDS = Real(most=MOST_SECONDS, unit="seconds")
#: A rate that the surplus is maximised at.
RATE = Maybe(Real(most=MOST_RATE, unit="tokens per second"))
#: When to stop with the best so far.
TIME_LIMIT = Maybe(Real(above=True, most=math.inf, unit="seconds"))

#: Most nodes of a tree.
MOST_NODES = 2**20
#: Most experts of a layer; files hold ids beyond 16 bits too.
MOST_EXPERTS = 2**16
#: Most experts of all layers.
MOST_LAYER_EXPERTS = 2**22
#: Most 64-bit words of packed rows, n * M * L * ceil(E / 64).
MOST_WORDS = 2**25
#: Most levels that are looked ahead.
MOST_LEVELS = 1024


def check_layers(n_layers: int, n_experts: int) -> None:
    """Check the numbers of layers and of experts per layer against the limits.

    Raises
    ------
    InvalidInputError
        If there are more than are taken.
    """
    if n_experts > MOST_EXPERTS:
        raise InvalidInputError(f"n_experts = {shown(n_experts)}; at most {MOST_EXPERTS} are taken")
    if n_layers * n_experts > MOST_LAYER_EXPERTS:
        raise InvalidInputError(
            f"n_layers = {shown(n_layers)} and n_experts = {n_experts} are too many; at most "
            f"{MOST_LAYER_EXPERTS} experts are taken over all layers"
        )


def check_size(n_nodes: int, n_layers: int, n_experts: int, n_scenarios: int = 1) -> None:
    """Check the size of a whole problem against the limits, before anything is allocated.

    Raises
    ------
    InvalidInputError
        If it is larger than what is taken.
    """
    check_layers(n_layers, n_experts)
    if n_nodes > MOST_NODES:
        raise InvalidInputError(
            f"the tree has {shown(n_nodes)} nodes; at most {MOST_NODES} are taken"
        )
    words = n_nodes * n_scenarios * n_layers * -(-n_experts // 64)
    if words > MOST_WORDS:
        scenarios = "" if n_scenarios == 1 else f"{n_scenarios} scenarios of "
        raise InvalidInputError(
            f"{scenarios}{n_nodes} nodes, {n_layers} layers and {n_experts} experts are too many: "
            f"packed, they take {words} words of 64 bits, and at most {MOST_WORDS} are taken"
        )
