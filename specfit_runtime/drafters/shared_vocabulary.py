"""Whether two models read the same tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import InvalidInputError

__all__ = ["require_shared_vocabulary"]


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
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        listed = whole["model"]["vocab"]
        if isinstance(listed, list):  # of the Unigram model: pairs of token and score
            words = {str(token): place for place, (token, _) in enumerate(listed)}
        else:
            words = {str(token): int(place) for token, place in listed.items()}
        for added in whole.get("added_tokens") or ():
            words[str(added["content"])] = int(added["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(f"cannot read the vocabulary in {path}: {error!r}") from error
    return words
