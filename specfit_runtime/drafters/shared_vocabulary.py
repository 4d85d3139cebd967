"""Whether two models read the same tokens."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

from specfit_opt.files.strict_json import read_json

from ..errors import InvalidInputError

__all__ = ["require_shared_vocabulary"]

#: Of a tokenizer.json: vocabularies have hundreds of thousands of tokens, and as many merges.
_MAX_BYTES, _MAX_VALUES = 2**27, 2**23


def require_shared_vocabulary(draft: Any, target: Any) -> str:
    """Check that a draft model's token ids mean what the target's do.

    The vocabularies in the two ``tokenizer.json`` are compared where both models come from folders
    that have one. Then the models' numbers of ids may differ, as checkpoints pad them differently;
    otherwise these numbers must be equal.

    Parameters
    ----------
    draft, target : transformers.PreTrainedModel

    Returns
    -------
    str
        What was assumed, empty if nothing.

    Raises
    ------
    InvalidInputError
        If the vocabularies differ, or may well.
    """
    sizes = [int(model.config.get_text_config().vocab_size) for model in (draft, target)]
    words = [_vocabulary(model) for model in (draft, target)]
    if words[0] is not None and words[1] is not None:
        if words[0] != words[1]:
            differ = sorted(set(words[0].items()) ^ set(words[1].items()))
            raise InvalidInputError(
                f"the draft model's tokenizer is not the target's: they differ in {len(differ)} "
                f"entries, such as {differ[0]!r}; drafting needs a model that shares the tokenizer"
            )
        needed = max(words[1].values(), default=-1) + 1
        have = len(draft.get_input_embeddings().weight)
        if have < needed:
            raise InvalidInputError(
                f"the draft model embeds {have} token ids, but the tokenizer that it shares with "
                f"the target has {needed}; it is damaged, or another model's tokenizer.json lies "
                "beside it"
            )
        return ""
    if sizes[0] != sizes[1]:
        raise InvalidInputError(
            f"the draft model has {sizes[0]} token ids, the target {sizes[1]}, and no two "
            "tokenizer.json show that they mean the same; drafting needs a model that shares the "
            "tokenizer"
        )
    return (
        "the tokenizers could not be compared, as not both folders hold a tokenizer.json; they are "
        "taken for the same because both models have as many ids"
    )


def _vocabulary(model: Any) -> dict[str, int] | None:
    """Return the ids by token, or None if there is no ``tokenizer.json``."""
    name = str(getattr(model, "name_or_path", "") or "")
    path = Path(name) / "tokenizer.json"
    if not name or not path.is_file():
        return None
    whole = read_json(path, limit=_MAX_BYTES, values=_MAX_VALUES, error=InvalidInputError)
    try:
        listed = whole["model"]["vocab"]
        if isinstance(listed, list):  # of the Unigram model: pairs of token and score
            words = {str(token): place for place, (token, _) in enumerate(listed)}
        else:
            words = {str(token): operator.index(place) for token, place in listed.items()}
        for added in whole.get("added_tokens") or ():
            words[str(added["content"])] = operator.index(added["id"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInputError(f"cannot read the vocabulary in {path}: {error!r}") from error
    return words
