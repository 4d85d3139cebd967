"""Reads what a folder says its model is, through Transformers and no further."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specfit_opt.checks import (
    MAX_REAL,
    MAX_WHOLE,
    Flag,
    Kind,
    Maybe,
    Real,
    Unfit,
    Whole,
    checked,
    shown,
)
from specfit_opt.files.strict_json import read_json
from specfit_opt.schema import Record

from ..errors import CheckpointError, InvalidInputError, SpecfitError
from .checkpoint import Checkpoint
from .foreign_code import refuse_code

__all__ = ["read_generation_config", "read_model_config", "reading"]

# How configurations call the sizes of a model: what is made in these numbers must be in the files.
_SIZE = re.compile(
    r"^(num|n|moe_num)_(\w+_)?(layers?|heads?|experts|embd|inner|group|hidden)$"
    r"|^(moe_|shared_|expert_|decoder_|encoder_)?(hidden|intermediate|vocab|embedding|ffn)\w*_size$"
    r"|^(encoder|decoder)_(layers|attention_heads|ffn_dim)$"
    r"|_dim$|_rank$|^d_(model|ff|kv|inner|state)$|^num_experts_per_tok$|^first_k_dense_replace$"
)
@dataclass(frozen=True)
class _Tokens(Kind):
    """A token id, several, or none."""

    wanted = "a token id, a list of them or null"

    def take(self, value: Any) -> Any:
        """Return ``value``."""
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(token) is int and -1 <= token < 2**63 for token in ids):
            raise Unfit(f"must be {self.wanted}, got {shown(value)}")
        return value


_NUMBER = Maybe(Real(least=-MAX_REAL))
_DRAWING: dict[str, Kind] = {
    "temperature": Maybe(Real(above=True)),
    "top_k": Maybe(Whole()),
    "top_p": Maybe(Real(most=1.0)),
    "min_p": Maybe(Real(most=1.0)),
    "typical_p": Maybe(Real(most=1.0)),
    "epsilon_cutoff": Maybe(Real(most=1.0)),
    "eta_cutoff": Maybe(Real(most=1.0)),
}
_GENERATION: dict[str, Kind] = {
    **dict.fromkeys(_DRAWING, _NUMBER),
    "top_k": Maybe(Whole(least=-MAX_WHOLE)),
    **dict.fromkeys(
        ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"), _Tokens()
    ),
    **dict.fromkeys(("do_sample", "use_cache", "return_dict_in_generate"), Maybe(Flag())),
    **dict.fromkeys(("length_penalty", "guidance_scale"), _NUMBER),
    **dict.fromkeys(
        ("max_length", "max_new_tokens", "min_length", "min_new_tokens"), Maybe(Whole())
    ),
    "repetition_penalty": Maybe(Real(above=True)),
    "no_repeat_ngram_size": Maybe(Whole()),
    "prefill_chunk_size": Maybe(Whole(least=1)),
    "num_beams": Maybe(Whole(least=1)),
    "num_return_sequences": Maybe(Whole(least=1)),
}
#: How much larger than the largest dimension of a tensor a size may be: published files may pack
#: several numbers into one.
_SLACK = 16


def read_model_config(folder: Path, checkpoint: Checkpoint) -> Any:
    """Return the configuration in a folder, as Transformers reads it.

    Parameters
    ----------
    folder : Path
    checkpoint : Checkpoint
        The folder's tensors: sizes that these cannot fill are refused before anything is made of
        them.

    Returns
    -------
    PretrainedConfig

    Raises
    ------
    CheckpointError
        If the file is missing or malformed, asks for code, names a type that Transformers does not
        know, or has a value that its class or the tensors rule out.
    """
    from transformers import AutoConfig

    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no config.json; give the folder of a checkpoint")
    refuse_code(folder)
    _check_sizes(path, read_json(path, error=CheckpointError), checkpoint)
    with reading(path, "Transformers cannot use"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        # A leftover of training with other tools, with which stock models cannot run at all.
        for part in (config, config.get_text_config()):
            part.return_dict = True
        return config


def read_generation_config(folder: Path) -> Any | None:
    """Return the generation config in a folder, None if there is none.

    Raises
    ------
    CheckpointError
        If the file is malformed or has a value that cannot be used.
    """
    from transformers import GenerationConfig

    path = folder / "generation_config.json"
    if not path.is_file():
        return None
    content = read_json(path, error=CheckpointError)
    # Without drawing nobody looks at these, and they may be what an older version left.
    kinds = [_GENERATION, _DRAWING] if content.get("do_sample") else [_GENERATION]
    try:
        for kind in kinds:
            checked(content, Record({}, kind, others=True))
    except InvalidInputError as error:
        raise CheckpointError(f"{path}: {error}") from None
    with reading(path, "Transformers cannot use"):
        return GenerationConfig.from_pretrained(folder, local_files_only=True)


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turn whatever a malformed file makes other libraries raise into the project's error.

    Parameters
    ----------
    path : Path
        The file, for the message.
    what : str
        Comes before it.

    Raises
    ------
    CheckpointError
        In place of any other exception but an interrupt.
    """
    try:
        yield
    except SpecfitError:
        raise
    except BaseException as error:
        # The tokenizers library is in Rust, and what it did not foresee is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # The dataclasses of huggingface_hub name the field on the second line.
        reason = f"{type(error).__name__}: {' '.join(lines[:2])[:400]}"
        if "trust_remote_code" in str(error):
            reason = (
                "it asks for code of its own (auto_map), and no code of a checkpoint is run; load "
                "a checkpoint of a type that Transformers knows"
            )
        raise CheckpointError(f"{what} {path}: {reason}") from error


def _check_sizes(path: Path, content: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    """Check that sizes are whole numbers that the tensors could fill."""
    count = len(checkpoint.tensors)
    largest = max((n for t in checkpoint.tensors.values() for n in t.shape), default=0)
    # Every layer has a tensor, and every expert one or a place in one of three dimensions.
    stacked = max((t.shape[0] for t in checkpoint.tensors.values() if len(t.shape) > 2), default=0)
    limits = {"layer": count, "layers": count, "experts": max(count, stacked)}
    most = _SLACK * max(count, largest)

    def check(values: Mapping[str, Any], place: str) -> None:
        for key, value in values.items():
            if isinstance(value, Mapping):
                check(value, f"{place}{key}.")
            elif value is not None and _SIZE.search(key):
                for number in value if isinstance(value, list) else [value]:
                    if type(number) is not int or number < 0:
                        raise CheckpointError(
                            f"{path}: {place}{key} must be a whole number of at least 0, got "
                            f"{shown(number)}"
                        )
                    if number > limits.get(key.rpartition("_")[2], most):
                        raise CheckpointError(
                            f"{path}: {place}{key} is {shown(number)}, which the {count} tensors "
                            f"of the checkpoint, of at most {largest} rows or columns, cannot fill"
                        )

    check(content, "")
