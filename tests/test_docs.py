"""The documentation is true: its examples run, and public names say what they take and give."""

from __future__ import annotations

import dataclasses
import doctest
import enum
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specfit_opt
import specfit_runtime
from specfit_opt import METHODS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    path for path in DOCS.rglob("*.rst") if path.relative_to(DOCS).parts[0] not in ("_build", "api")
)
TEXTS = [*sorted(ROOT.glob("*.md")), *PAGES]

PUBLIC = {
    name: value
    for name, value in vars(specfit_opt).items()
    if not name.startswith("_")
    and not inspect.ismodule(value)
    and getattr(value, "__module__", "specfit_opt").startswith("specfit_opt")
}
PUBLIC.pop("annotations", None)  # the __future__ import
NOT_CALLABLE = {name for name, value in PUBLIC.items() if not callable(value)}


# ---- examples


def readme_examples() -> list[str]:
    """Return the Python blocks of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```(?:python|pycon)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def shown_in_full(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", PAGES, ids=shown_in_full)
def test_examples_of_the_pages(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What a page registers is gone after it.
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))
    failed, _ = doctest.testfile(str(path), module_relative=False, encoding="utf-8")
    assert failed == 0


@pytest.mark.parametrize(("page", "least"), [("start", 10), ("solve", 15), ("embed", 8)])
def test_pages_have_examples(page: str, least: int) -> None:
    # Guards the test above: a page whose prompts no longer parse would pass it.
    parser = doctest.DocTestParser()
    text = (DOCS / "use" / f"{page}.rst").read_text(encoding="utf-8")
    assert len(parser.get_examples(text)) >= least


#: What a reader gets through at one sitting.
MOST_WORDS = 1200


@pytest.mark.parametrize("path", sorted((DOCS / "use").glob("*.rst")), ids=shown_in_full)
def test_pages_on_use_are_short_and_hold_no_study(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.split()) <= MOST_WORDS
    assert ".. measured::" not in text


def test_what_a_table_means_is_read_before_any_table() -> None:
    index = (DOCS / "index.rst").read_text(encoding="utf-8")
    pages = re.findall(r"^   (results/\w+)$", index, re.MULTILINE)
    assert pages[0] == "results/one_pass"
    assert sorted(pages) == sorted(f"results/{p.stem}" for p in (DOCS / "results").glob("*.rst"))


def test_every_table_is_on_one_page() -> None:
    shown: list[str] = []
    for path in PAGES:
        shown += re.findall(r"^\.\. measured:: (\S+)$", path.read_text("utf-8"), re.MULTILINE)
    assert len(set(shown)) == len(shown)
    measured = {p.name for p in (ROOT / "benchmarks" / "results").glob("*.txt")}
    assert not measured - set(shown)


def test_examples_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = readme_examples()
    assert blocks, "the README has no Python example"
    monkeypatch.chdir(tmp_path)  # an example may write a file
    scope: dict[str, Any] = {}
    for block in blocks:
        if ">>>" in block:
            test = doctest.DocTestParser().get_doctest(block, scope, "README.md", None, 0)
            assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0
            scope = test.globs
        else:
            exec(compile(block, "README.md", "exec"), scope)


# ---- pages and code agree


def test_every_public_name_is_on_the_api_page() -> None:
    text = (DOCS / "api.rst").read_text(encoding="utf-8")
    listed = set(re.findall(r"^(?:   |\.\. py:data:: )(\w+)$", text, re.MULTILINE))
    expected = set(PUBLIC) | set(specfit_runtime.__all__)
    assert not expected - listed, f"missing on docs/api.rst: {sorted(expected - listed)}"


def test_the_api_page_lists_nothing_that_is_gone() -> None:
    text = (DOCS / "api.rst").read_text(encoding="utf-8")
    module: Any = specfit_opt
    seen = 0
    for line in text.splitlines():
        if found := re.match(r"\.\. currentmodule:: (.*)", line):
            module = _import(found[1])
        elif found := re.match(r"   (\w+)$", line):
            seen += 1
            assert hasattr(module, found[1]), f"{module.__name__} has no {found[1]}"
    assert seen > len(PUBLIC) // 2


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_on_the_methods_page(name: str) -> None:
    assert f"* - ``{name}``" in (DOCS / "methods.rst").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("module", "registry"),
    [
        ("specfit_opt.policies", "POLICIES"),
        ("specfit_opt.caches", "CACHE_RULES"),
        ("specfit_runtime.drafters", "DRAFTERS"),
        ("specfit_runtime.predictors", "PREDICTORS"),
        ("specfit_runtime.stores", "STORES"),
    ],
)
def test_every_registry_is_on_the_page_of_parts(module: str, registry: str) -> None:
    page = (DOCS / "parts.rst").read_text(encoding="utf-8")
    assert f".. registry-table:: {module}:{registry}\n" in page
    for entry in getattr(_import(module), registry).values():
        assert entry.summary, f"{entry} says nothing of itself"


def test_every_model_family_is_on_the_page_of_parts() -> None:
    from specfit_runtime.families import FAMILIES

    page = (DOCS / "parts.rst").read_text(encoding="utf-8")
    page = page[page.index("\nModel families\n---") :]
    listed = re.findall(r"^   \* - ``(\w+)``$", page, re.MULTILINE)
    assert [name for name in listed if name != "model_type"] == list(FAMILIES)


def test_every_command_is_on_the_command_line_page() -> None:
    from specfit_runtime.cli.main import build_parser

    page = (DOCS / "command_line.rst").read_text(encoding="utf-8")
    usage = build_parser()
    commands = next(a.choices for a in usage._actions if a.dest == "command" or a.nargs == "A...")
    assert commands
    for command in commands:
        assert f".. cli-help:: {command}\n" in page, f"docs/command_line.rst lacks {command}"


@pytest.mark.parametrize("path", TEXTS, ids=shown_in_full)
def test_mentioned_files_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    folders = "specfit_opt|specfit_runtime|docs|tests|benchmarks|examples"
    for mention in re.findall(rf"\b((?:{folders})/[\w/]+\.\w+)", text):
        # A build product or a measured table need not be there.
        if "_build" not in mention and not mention.startswith("benchmarks/results/"):
            assert (ROOT / mention).exists(), f"{shown_in_full(path)} mentions {mention}"


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.md")), ids=shown_in_full)
def test_links_of_the_texts_at_the_root_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (ROOT / target).exists(), target


#: Words that stood for a picture where the field has a term; whole words, any case.
PICTURES = ("settle", "owed", "doubt", "stock of", "luck", "in vain", "waves", "rooms")


@pytest.mark.parametrize("path", [p for p in TEXTS if p.name != "CHANGELOG.md"], ids=shown_in_full)
def test_plain_words(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = [w for w in PICTURES if re.search(rf"\b{w}s?\b", text, re.IGNORECASE)]
    assert not found


@pytest.mark.parametrize("path", TEXTS, ids=shown_in_full)
def test_mentioned_make_targets_exist(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for target in re.findall(r"\bmake ([a-z-]+)(?=[`\s]*(?:\s#|``|`|$))", path.read_text("utf-8")):
        assert target in targets, f"{shown_in_full(path)} mentions make {target}"


# ---- docstrings


@pytest.mark.parametrize("name", sorted(set(PUBLIC) - NOT_CALLABLE))
def test_public_names_are_documented(name: str) -> None:
    problems = list(docstring_problems(name, PUBLIC[name]))
    if inspect.isclass(PUBLIC[name]) and not issubclass(PUBLIC[name], (enum.Enum, Exception)):
        for label, member in public_methods(PUBLIC[name]):
            problems += docstring_problems(f"{name}.{label}", member, is_method=True)
    assert not problems, "\n".join(problems)


def docstring_problems(name: str, value: Any, *, is_method: bool = False) -> Iterator[str]:
    """Yield what a docstring lacks: sections for what its object takes, returns and raises.

    A method's one-line summary may do for two of them: "Return cycle ``index``".
    """
    doc = inspect.getdoc(value)
    if not doc:
        yield f"{name} has no docstring"
        return
    sections = numpydoc_sections(doc)
    if inspect.isclass(value):
        wanted = parameters(value) if not issubclass(value, (enum.Enum, Exception)) else []
        listed = documented(sections, "Parameters") | documented(sections, "Attributes")
    else:
        wanted = parameters(value)
        listed = documented(sections, "Parameters")
    summary = doc.partition("\n")[0] if is_method else ""
    listed |= set(re.findall(r"``(\w+)``", summary))
    missing = [p for p in wanted if p not in listed]
    if missing:
        yield f"{name}: no entry for {', '.join(missing)}"
    stray = documented(sections, "Parameters") - set(wanted)
    if stray and not (inspect.isclass(value) and issubclass(value, Exception)):
        yield f"{name}: documents {', '.join(sorted(stray))}, which it does not take"
    tells = "Returns" in sections or summary.startswith(("Return ", "Iterate "))
    if not inspect.isclass(value) and returns_something(value) and not tells:
        yield f"{name}: no section Returns"
    if raises(value) and "Raises" not in sections:
        yield f"{name}: no section Raises"


def numpydoc_sections(doc: str) -> dict[str, list[str]]:
    """Return the lines of every section: a heading underlined with as many dashes."""
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    lines = doc.splitlines()
    for i, line in enumerate(lines):
        below = lines[i + 1] if i + 1 < len(lines) else ""
        if line and below == "-" * len(line):
            current = sections.setdefault(line, [])
        elif set(line) != {"-"}:
            current.append(line)
    return sections


def documented(sections: dict[str, list[str]], section: str) -> set[str]:
    """Return the names that a section has entries for; one entry may hold several."""
    names: set[str] = set()
    for line in sections.get(section, []):
        if line and not line.startswith(" "):
            names |= {n.strip().lstrip("*") for n in line.partition(" :")[0].split(",")}
    return names


def parameters(value: Callable[..., Any]) -> list[str]:
    if inspect.isclass(value) and value.__init__ is object.__init__:  # type: ignore[misc]
        return []
    return [n for n in inspect.signature(value).parameters if n not in ("self", "cls")]


def returns_something(value: Callable[..., Any]) -> bool:
    return inspect.signature(value).return_annotation not in (None, "None", inspect.Signature.empty)


def raises(value: Any) -> bool:
    """Whether the object's own code raises on purpose, as far as a look at the source tells."""
    if inspect.isclass(value):
        if issubclass(value, Exception):
            return False
        bodies = [value.__dict__.get("__init__"), value.__dict__.get("__post_init__")]
    else:
        bodies = [value]
    for body in bodies:
        code = inspect.unwrap(body) if inspect.isfunction(body) else None
        if code is None or code.__code__.co_filename.startswith("<"):  # made by dataclasses
            continue
        if re.search(r"^\s+raise [A-Z]", inspect.getsource(code), re.MULTILINE):
            return True
    return False


def public_methods(value: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(value).items():
        if name.startswith("_"):
            continue
        if isinstance(member, (classmethod, staticmethod)):
            yield name, getattr(value, name)
        elif inspect.isfunction(member):
            yield name, member


@pytest.mark.parametrize("name", [n for n, v in PUBLIC.items() if dataclasses.is_dataclass(v)])
def test_public_records_document_every_field(name: str) -> None:
    value = PUBLIC[name]
    sections = numpydoc_sections(inspect.getdoc(value) or "")
    described = documented(sections, "Attributes") | documented(sections, "Parameters")
    fields = {f.name for f in dataclasses.fields(value) if not f.name.startswith("_")}
    assert fields <= described, f"{name}: undocumented fields {sorted(fields - described)}"


def test_the_checker_sees_what_is_wrong() -> None:
    def lacking(given: int) -> int:
        """Do something."""
        if given < 0:
            raise ValueError(given)
        return given

    def fine(given: int, other: int) -> np.ndarray:
        """Do something.

        Parameters
        ----------
        given, other : int

        Returns
        -------
        ndarray
        """
        return np.array([given, other])

    assert [p.partition(": ")[2] for p in docstring_problems("f", lacking)] == [
        "no entry for given",
        "no section Returns",
        "no section Raises",
    ]
    assert not list(docstring_problems("f", fine))


def _import(name: str) -> Any:
    from importlib import import_module

    return import_module(name)
