"""Where prompts come from: the command line, a file, standard input."""

from __future__ import annotations

import sys

from specfit_opt.checks import Text
from specfit_opt.files.regular_file import printable, read_regular
from specfit_opt.files.strict_json import MAX_BYTES, parse_json
from specfit_opt.schema import Record

from ..errors import InvalidInputError

_LINE = Record({"prompt": Text(empty=True)}, others=True)


def read_text(path: str) -> str:
    """Return the content of ``path``; ``-`` is standard input.

    Raises
    ------
    InvalidInputError
        If it is no UTF-8, or has more than 16 MiB.
    OSError
        If it cannot be read.
    """
    if path == "-":
        path = "standard input"
        if sys.stdin is None:
            raise InvalidInputError("standard input is closed; give --prompt or --prompt-file")
        # A program that calls this may have put a stream of text there.
        given = getattr(sys.stdin, "buffer", sys.stdin).read(MAX_BYTES + 1)
        content = given if isinstance(given, bytes) else given.encode("utf-8", "surrogatepass")
        if len(content) > MAX_BYTES:
            raise InvalidInputError(f"{path}: has more than {MAX_BYTES} bytes")
    else:
        content = read_regular(path, MAX_BYTES)
    try:
        # As text files are read: every line ends in a line feed.
        return content.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"{printable(path)}: not UTF-8 text: {error.reason} at byte {error.start}"
        ) from None


def one_prompt(text: str | None, path: str | None) -> str:
    """Return the prompt: ``text`` itself, or the whole content of the file ``path``.

    Raises
    ------
    InvalidInputError
        If it is empty, or no UTF-8.
    OSError
        If the file cannot be read.
    """
    prompt = text if text is not None else read_text(path or "-")
    if not prompt:
        raise InvalidInputError(f"{'--prompt' if text is not None else path}: the prompt is empty")
    return _utf8(prompt, "--prompt")


def many_prompts(texts: list[str] | None, path: str | None) -> list[str]:
    """Return ``texts``, then the prompts of the file ``path``: one a line, as text or as JSON.

    A line that begins with ``{`` is a JSON object whose ``prompt`` counts, so that a prompt may
    hold line feeds. Empty lines are skipped.

    Raises
    ------
    InvalidInputError
        If there is none, one is empty or no UTF-8, or a line is broken.
    OSError
        If the file cannot be read.
    """
    prompts = [_utf8(text, "--prompt") for text in texts or ()]
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
    prompt: str = parse_json(line, where, _LINE)["prompt"]
    return prompt


def _utf8(text: str, where: str) -> str:
    """Return ``text``, unless it stands for bytes of the command line that are no UTF-8."""
    prompt: str = Text(empty=True)(text, where)
    return prompt
