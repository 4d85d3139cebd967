"""``specfit info``: versions, kernel, build and processor, for bug reports."""

from __future__ import annotations

import argparse
import os
import platform
import re
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from .. import __version__, kernel
from .output import print_json

#: Processor features that matter to a kernel of bit operations, by the kernel's names for them.
_CPU_FLAGS = ("popcnt", "bmi1", "bmi2", "avx2", "avx512f", "avx512vpopcntdq")


def add_parser(commands: Any) -> None:
    """Add the subcommand to ``commands``."""
    parser = commands.add_parser(
        "info",
        help="versions, kernel, build and processor, for bug reports",
        description="Print what a bug report should say about this installation.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print the report."""
    report = collect()
    if args.json:
        print_json(report)
        return
    for section, entries in report.items():
        print(section)
        width = max(len(key) for key in entries)
        for key, value in entries.items():
            print(f"  {key.ljust(width)}  {value}")


def collect() -> dict[str, dict[str, Any]]:
    """Return the report: section, entry, value."""
    return {
        "specfit": {
            "version": __version__,
            "kernel": kernel.NAME,
            "because": _reason(),
            **_build(),
        },
        "system": {
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "platform": platform.platform(),
            "processor": _processor(),
            "cpu features": " ".join(_cpu_features()) or "unknown",
            "cpus": os.cpu_count() or "unknown",
        },
        "packages": {"numpy": version("numpy"), **_optional_packages()},
    }


def _reason() -> str:
    choice = os.environ.get(kernel.VARIABLE, "")
    if choice:
        return f"{kernel.VARIABLE}={choice}"
    if kernel.NAME == "cython":
        return f"{kernel.VARIABLE} is not set and the compiled kernel is there"
    try:
        import_module(f"{kernel.__name__}._kernel")
    except ImportError as error:
        return f"the compiled kernel cannot be imported: {error}"
    return "unknown"


def _build() -> dict[str, Any]:
    """Return how the compiled kernel was built, as it reports itself."""
    try:
        compiled = import_module(f"{kernel.__name__}._kernel")
    except ImportError as error:
        return {"compiled kernel": f"not there: {error}"}
    return dict(compiled.BUILD)


def _optional_packages() -> dict[str, str]:
    """Return the packages of every extra with their versions, as the metadata lists them."""
    found: dict[str, str] = {}
    try:
        requirements = requires("specfit") or []
    except PackageNotFoundError:  # a source tree that was never installed
        return {"extras": "unknown: specfit runs from a source tree that is not installed"}
    for requirement in requirements:
        match = re.match(r"([A-Za-z0-9._-]+).*extra\s*==\s*['\"]([\w-]+)['\"]", requirement)
        if match is None or match[1] == "specfit":
            continue
        package, extra = match.groups()
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = f"not installed (extra {extra})"
    return found


def _processor() -> str:
    for line in _cpuinfo():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cpu_features() -> list[str]:
    for line in _cpuinfo():
        if line.startswith(("flags", "Features")):
            flags = {flag.replace("_", "") for flag in line.partition(":")[2].split()}
            return [flag for flag in _CPU_FLAGS if flag in flags]
    return []


def _cpuinfo() -> list[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as handle:
            return handle.read().splitlines()
    except OSError:  # not Linux
        return []
