"""Owns driver roots with another distribution's C library: Debian's own packages of an older and a newer release.

They are fetched once from the mirror that this machine's apt uses, and stay below build/image.
"""

from __future__ import annotations

import fcntl
import shutil
from dataclasses import dataclass
from pathlib import Path

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
    """A folder with the release's C library and coreutils, which nobody may change. Raises ImageTierError."""
    folder = builder.FOLDER / f"libc-{release.codename}"
    builder.FOLDER.mkdir(parents=True, exist_ok=True)
    with (builder.FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _fetch(release, folder)
    return folder


def _fetch(release: Release, folder: Path) -> None:
    """Download and unpack, with an apt that has this release alone as its source."""
    work = folder.with_suffix(".work")
    shutil.rmtree(work, ignore_errors=True)
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
        builder.checked(["dpkg-deb", "--extract", str(package), str(work / "tree")], TIMEOUT_S)
    (work / "tree").rename(folder)
    shutil.rmtree(work)
