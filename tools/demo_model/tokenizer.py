"""Train the byte-level BPE tokenizer and encode the corpus with it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from .corpus import Document

__all__ = ["END_OF_TEXT", "encode", "train_tokenizer"]

END_OF_TEXT = "<|endoftext|>"  # id 0; also begins every document


def train_tokenizer(texts: Iterable[str], vocab_size: int, folder: Path) -> None:
    """Train on `texts` and save in Transformers' format to `folder`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    ).save_pretrained(folder)


def encode(documents: Sequence[Document], tokenizer_folder: Path, target: Path) -> int:
    """Write the documents' ids as one run, each document behind an end-of-text; return its length.

    Complexity: linear in the text. The ids are saved as ``uint16``.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    end = tokenizer.token_to_id(END_OF_TEXT)
    encodings = tokenizer.encode_batch([document.text for document in documents])
    ids = np.concatenate([np.asarray([end, *found.ids], dtype=np.uint16) for found in encodings])
    partial = target.with_suffix(".partial.npy")
    np.save(partial, ids)
    os.replace(partial, target)
    return int(ids.size)
