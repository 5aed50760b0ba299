"""Owns driver roots with another distribution's C library: Debian's own packages of an older and a newer release.

They are fetched once from the mirror that this machine's apt uses, and stay in the cache.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.support import cache
from tests.support.image import builder

KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PACKAGES = ("libc6", "coreutils")
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Release:
    """A release of Debian, by codename, with the version of its C library."""

    codename: str
    glibc: str


OLDER = Release("bullseye", "2.31")
NEWER = Release("trixie", "2.41")


def tree(release: Release) -> Path:
    """A folder with the release's C library and coreutils, which no test may change. Raises ImageTierError."""
    made = cache.entry("libc", cache.key(release.codename, Path(__file__)), lambda fresh: _fetch(release, fresh))
    return made / "tree"


def _fetch(release: Release, folder: Path) -> None:
    """Download and unpack to `folder`/tree, with an apt that has this release alone as its source."""
    work = folder / "work"
    for name in ("lists/partial", "archives/partial", "etc", "debs"):
        (work / name).mkdir(parents=True)
    (work / "status").touch()
    (work / "sources.list").write_text(f"deb [signed-by={KEYS}] {builder.mirror()} {release.codename} main\n")
    options = {
        "Dir::Etc": work / "etc",
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::State::status": work / "status",
        "Dir::State::lists": work / "lists",
        "Dir::Cache": work,
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    words = ["apt-get", "--quiet", *(f"--option={name}={value}" for name, value in options.items())]
    builder.checked([*words, "update"], TIMEOUT_S)
    builder.checked([*words, "download", *PACKAGES], TIMEOUT_S, folder=work / "debs")
    for package in (work / "debs").glob("*.deb"):
        builder.checked(["dpkg-deb", "--extract", str(package), str(folder / "tree")], TIMEOUT_S)
    shutil.rmtree(work)
