"""The mask of a tree behind a prefix, checked key by key and against Transformers' own masks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tree_decoding import path_to, random_parents

from specfit_runtime.errors import InvalidInputError
from specfit_runtime.verify.tree_mask import MASK_FORMATS, TreeShape, attention_mask


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 14),
    prefix=st.integers(0, 12),
    window=st.none() | st.integers(2, 9),
    data=st.data(),
)
def test_each_key_is_seen_exactly_if_it_is_in_the_nodes_own_text(seed, n, prefix, window, data):
    parent = random_parents(n, np.random.default_rng(seed))
    least = prefix if window is None else min(prefix, window - 1)
    kept = data.draw(st.integers(least, prefix))
    shape = TreeShape.of(parent)
    seen = shape.visible(prefix, kept=kept, window=window)
    positions = shape.position_ids(prefix, "cpu")
    assert seen.shape == (n, kept + n)
    for v in range(n):
        path = path_to(v, parent)
        # The node's own text, position by position: the prefix, then the path to the node.
        text = [("prefix", j) for j in range(prefix)] + [("node", u) for u in path]
        assert positions[0, v] == len(text) - 1
        if window is not None:
            text = text[-window:]
        expected = {
            j - (prefix - kept) if where == "prefix" else kept + j for where, j in text
        }
        assert set(np.flatnonzero(seen[v])) == expected


def test_siblings_share_a_position_and_do_not_see_each_other():
    shape = TreeShape.of([-1, 0, 0, 1])
    assert shape.position_ids(5, "cpu").tolist() == [[5, 6, 6, 7]]
    seen = shape.visible(1)
    assert seen.astype(int).tolist() == [
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 1, 0, 1],
    ]


@pytest.mark.parametrize(
    ("parent", "match"),
    [
        ([], "no nodes"),
        ([0], "node 0 is the root"),
        ([-1, -1], r"parent\[1\] = -1: node 1 has no parent"),
        ([-1, 0, 3, 0], r"parent\[2\] = 3: node 2 has no parent among the nodes before it"),
        ([-1, 1], r"parent\[1\] = 1"),
        ([-1, 0.5], "integers"),
        ([[-1]], "dimension"),
    ],
)
def test_a_node_without_its_parent_is_refused(parent, match):
    with pytest.raises(InvalidInputError, match=match):
        TreeShape.of(parent)


def test_a_prefix_that_the_window_still_shows_must_be_there():
    shape = TreeShape.of([-1, 0])
    assert shape.visible(9, kept=3, window=4).shape == (2, 5)
    with pytest.raises(InvalidInputError, match="holds 2 of 9 earlier keys"):
        shape.visible(9, kept=2, window=4)
    with pytest.raises(InvalidInputError, match="sees them all"):
        shape.visible(9, kept=8)
    with pytest.raises(InvalidInputError, match="not between 0 and the prefix of 9"):
        shape.visible(9, kept=10)


def test_a_chain_has_the_mask_that_transformers_makes_for_a_text():
    from transformers.masking_utils import sdpa_mask, sliding_window_causal_mask_function

    n, prefix, window = 5, 9, 6
    chain = TreeShape.of(range(-1, n - 1))
    for kept, mask_function in ((prefix, None), (window - 1, window)):
        more = {} if mask_function is None else {
            "mask_function": sliding_window_causal_mask_function(window)
        }
        theirs = sdpa_mask(
            batch_size=1,
            q_length=n,
            kv_length=kept + n,
            q_offset=prefix,
            kv_offset=prefix - kept,
            allow_is_causal_skip=False,
            **more,
        )
        seen = chain.visible(prefix, kept=kept, window=None if mask_function is None else window)
        ours = attention_mask(seen, "sdpa", dtype=torch.float32, device="cpu")
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_eager_gets_numbers_to_add_and_sdpa_booleans(dtype):
    seen = TreeShape.of([-1, 0, 0]).visible(2)
    eager = attention_mask(seen, "eager", dtype=dtype, device="cpu")
    assert eager.dtype == dtype
    assert eager.shape == (1, 1, 3, 5)
    assert torch.equal(eager[0, 0] == 0, torch.from_numpy(seen))
    assert set(eager.unique().tolist()) == {0.0, torch.finfo(dtype).min}
    assert attention_mask(seen, "sdpa", dtype=dtype, device="cpu").dtype == torch.bool


def test_attention_that_takes_no_mask_is_refused():
    assert set(MASK_FORMATS) == {"eager", "sdpa"}
    with pytest.raises(InvalidInputError, match="'flash_attention_2' cannot verify a tree"):
        attention_mask(
            np.ones((1, 1), bool), "flash_attention_2", dtype=torch.float32, device="cpu"
        )
