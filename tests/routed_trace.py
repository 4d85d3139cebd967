"""A made-up recording whose routing follows a rule that can be learned."""

from __future__ import annotations

import numpy as np

from specfit_opt.files import Trace

LAYERS, EXPERTS, TOP_K, STATE, VOCAB = 3, 8, 2, 5, 20


def routed_trace(
    seed: int = 0, *, prompts: int = 6, positions: int = 40, states: bool = True
) -> Trace:
    """Return a trace of roots with three children each.

    In every layer a node uses two experts: one by its token, and one by which entry of its state is
    the largest. The token tells a half of the routing, token and state all of it.
    """
    rng = np.random.default_rng(seed)
    cycles = prompts * positions
    shape = cycles, 4
    token = rng.integers(0, VOCAB, shape)
    parents = rng.normal(size=(cycles, 2, STATE))
    state = parents[:, [0, 1, 1, 1]]  # siblings share their parent's
    layer = np.arange(LAYERS)
    by_token = (token[..., None] + layer) % (EXPERTS - STATE)
    by_state = EXPERTS - STATE + (state.argmax(axis=-1)[..., None] + layer) % STATE
    experts = np.stack([by_token, by_state], axis=-1)
    return Trace(
        cycle_start=4 * np.arange(cycles + 1),
        prompt=np.repeat(np.arange(prompts), positions),
        position=np.tile(np.arange(positions), prompts),
        parent=np.tile([-1, 0, 0, 0], cycles),
        token=token.ravel(),
        path_prob=np.tile([1.0, 0.3, 0.3, 0.3], cycles),
        depth=np.tile([0, 1, 1, 1], cycles),
        accepted=np.tile([True, False, False, False], cycles),
        experts=experts.reshape(-1, LAYERS, TOP_K),
        n_experts=EXPERTS,
        states=state.reshape(-1, STATE) if states else None,
        name=f"routed-{seed}",
    )
