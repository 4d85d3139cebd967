"""Where prompts come from: the command line, a file, standard input."""

from __future__ import annotations

import json
import sys

from ..errors import InvalidInputError


def read_text(path: str) -> str:
    """Return the content of ``path``; ``-`` is standard input.

    Raises
    ------
    InvalidInputError
        If it is no UTF-8.
    OSError
        If it cannot be read.
    """
    try:
        if path == "-":
            return sys.stdin.read()
        with open(path, encoding="utf-8") as handle:
            return handle.read()
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{path}: not UTF-8 text: {error}") from None


def one_prompt(text: str | None, path: str | None) -> str:
    """Return the prompt: ``text`` itself, or the whole content of the file ``path``.

    Raises
    ------
    InvalidInputError
        If it is empty.
    OSError
        If the file cannot be read.
    """
    prompt = text if text is not None else read_text(path or "-")
    if not prompt:
        raise InvalidInputError(f"{'--prompt' if text is not None else path}: the prompt is empty")
    return prompt


def many_prompts(texts: list[str] | None, path: str | None) -> list[str]:
    """Return ``texts``, then the prompts of the file ``path``: one a line, as text or as JSON.

    A line that begins with ``{`` is a JSON object whose ``prompt`` counts, so that a prompt may
    hold line feeds. Empty lines are skipped.

    Raises
    ------
    InvalidInputError
        If there is none, one is empty, or a line is broken.
    OSError
        If the file cannot be read.
    """
    prompts = list(texts or ())
    if path is not None:
        for number, line in enumerate(read_text(path).split("\n"), 1):
            if line.strip():
                prompts.append(_of_line(line, f"{path}, line {number}"))
    if not prompts:
        raise InvalidInputError(
            "no prompt: give --prompt TEXT or --prompt-file FILE with one prompt a line"
        )
    for i, prompt in enumerate(prompts):
        if not prompt:
            raise InvalidInputError(f"prompt {i} is empty")
    return prompts


def _of_line(line: str, where: str) -> str:
    if not line.lstrip().startswith("{"):
        return line
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"{where}: broken JSON: {error}") from None
    prompt = entry.get("prompt")
    if not isinstance(prompt, str):
        raise InvalidInputError(f'{where}: the object needs a text "prompt", got {prompt!r}')
    return prompt
