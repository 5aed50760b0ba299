"""Owns the guest's kernel: which version, its packages, and their unpacked tree.

Nothing is installed: the packages are downloaded with the system's own apt and unpacked with `dpkg -x`.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.support import cache
from tests.support.kernel.tools import KernelTierError, run

META_PACKAGE = "linux-image-cloud-amd64"


@dataclass(frozen=True)
class KernelImage:
    """An unpacked kernel: `release` is what uname -r will say, `root` the tree of its packages."""

    release: str
    version: str
    root: Path

    @property
    def vmlinuz(self) -> Path:
        return self.root / f"boot/vmlinuz-{self.release}"

    @property
    def headers(self) -> Path:
        return self.root / f"usr/src/linux-headers-{self.release}"

    @property
    def modules(self) -> Path:
        return self.root / f"lib/modules/{self.release}"


def prepare() -> KernelImage:
    """The kernel that the cloud image package stands for today, unpacked in the cache.

    Raises KernelTierError where apt knows no such package or cannot download it.
    """
    release, version = _resolve()

    def make(fresh: Path) -> None:
        _unpack(_packages(release), KernelImage(release, version, fresh))

    return KernelImage(release, version, cache.entry("kernel", cache.key(release, version, Path(__file__)), make))


def _resolve() -> tuple[str, str]:
    """Release and version, by one call: apt reads its lists for a second each time."""
    shown = run(["apt-cache", "show", "--no-all-versions", META_PACKAGE], timeout_s=150).decode()
    found = re.search(r"^Depends: .*linux-image-(\S+) \(= (\S+)\)", shown, re.MULTILINE)
    if found is None:
        raise KernelTierError(f"apt shows no image that {META_PACKAGE} depends on; run apt-get update")
    return found[1], found[2]


def _packages(release: str) -> list[str]:
    """The four packages: image, headers, common headers and kbuild."""
    headers = f"linux-headers-{release}"
    return [
        f"linux-image-{release}",
        headers,
        _depends(headers, r"linux-headers-\S+-common"),
        _depends(headers, r"linux-kbuild-\S+"),
    ]


def _depends(package: str, pattern: str) -> str:
    shown = run(["apt-cache", "depends", "--no-recommends", package], timeout_s=150).decode()
    found = re.search(rf"Depends: ({pattern})$", shown, re.MULTILINE)
    if found is None:
        raise KernelTierError(f"apt knows no {pattern} that {package} depends on; run apt-get update")
    return found[1]


def _unpack(packages: list[str], image: KernelImage) -> None:
    debs = image.root / "debs"
    debs.mkdir(parents=True)
    # apt hands downloads to its own user where it can; without that it only warns.
    run(["apt-get", "-o", "APT::Sandbox::User=root", "download", *packages], cwd=debs, timeout_s=900)
    for deb in debs.glob("*.deb"):
        run(["dpkg", "-x", deb, image.root], timeout_s=300)
    shutil.rmtree(debs)
    # The headers' Makefile names its common part by an absolute path under /usr/src.
    makefile = image.headers / "Makefile"
    makefile.write_text(
        re.sub(r"^include /usr/src/", "include $(dir $(lastword $(MAKEFILE_LIST)))../", makefile.read_text())
    )
    run(["depmod", "-b", image.root, image.release], timeout_s=300)
