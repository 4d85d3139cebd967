"""Rotary frequencies that change with the length of the text, in passes over several tokens.

With the types ``dynamic`` and ``longrope`` all tokens of a pass are turned by the frequencies of
the pass's last position. Decoding token by token turns each by those of its own position, so a tree
has to be turned so too, and what one pass changed may not reach the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["GrowingRotary"]


class GrowingRotary:
    """The modules of a model whose rotary frequencies change with the length of the text.

    Parameters
    ----------
    model : PreTrainedModel
        Most have no such module; then nothing here does anything.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [module for module in model.modules() if _grows(module)]

    @contextmanager
    def fresh(self, *, tree: bool = False) -> Iterator[None]:
        """Let the passes inside see frequencies as in a model that ran no other text before.

        Parameters
        ----------
        tree : bool
            Turn each token as a pass that ended with it would. Otherwise, as always, as the pass's
            last one.
        """
        with ExitStack() as stack:
            for module in self._modules:
                _reset(module)
                stack.callback(_reset, module)
                if tree:
                    hook = module.register_forward_hook(_by_position, with_kwargs=True)
                    stack.callback(hook.remove)
            yield


def _grows(module: nn.Module) -> bool:
    kinds = getattr(module, "rope_type", None)
    kinds = kinds.values() if isinstance(kinds, Mapping) else [kinds]
    return any("dynamic" in kind or kind == "longrope" for kind in map(str, kinds))


def _reset(module: Any) -> None:
    """Forget the longest pass so far, which the type ``dynamic`` keeps.

    Transformers itself does so only once a pass is shorter than the stated context.
    """
    kept = [name for name in module._buffers if name.endswith("original_inv_freq")]
    # A tensor of inference mode could not be written to outside of it.
    with torch.inference_mode(False):
        for name in kept:
            prefix = name.removesuffix("original_inv_freq")
            module._buffers[f"{prefix}inv_freq"] = module._buffers[name].clone()
    for name in [name for name in vars(module) if name.endswith("max_seq_len_cached")]:
        setattr(module, name, module.original_max_seq_len)


def _by_position(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Return cosines and sines, [1, n, d] each, of every position as the last of its pass."""
    named = "position_ids" in kwargs
    positions: Tensor = kwargs["position_ids"] if named else args[1]
    distinct, which = torch.unique(positions[0], return_inverse=True)
    found = []
    for position in distinct.view(-1, 1, 1):
        _reset(module)
        # Not the module itself: that would come here again.
        if named:
            found.append(module.forward(*args, **{**kwargs, "position_ids": position}))
        else:
            found.append(module.forward(args[0], position, *args[2:], **kwargs))
    return tuple(torch.cat(parts, dim=1)[:, which] for parts in zip(*found, strict=True))
