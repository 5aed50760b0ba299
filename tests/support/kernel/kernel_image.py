"""Owns the guest's kernel: which version, its packages, and their unpacked tree in the cache.

Nothing is installed: the packages are downloaded with the system's own apt and unpacked with `dpkg -x`.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.support.kernel.tools import KernelTierError, run

META_PACKAGE = "linux-image-cloud-amd64"
STAMP = ".complete"


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


def prepare(cache: Path) -> KernelImage:
    """The kernel that the cloud image package stands for today, unpacked below `cache`.

    Raises KernelTierError where apt knows no such package or cannot download it.
    """
    packages = _resolve()
    release, version = packages[0].removeprefix("linux-image-"), _version(packages[0])
    image = KernelImage(release, version, cache / f"kernel-{release}-{version.replace(':', '_')}")
    if not (image.root / STAMP).exists():
        for old in cache.glob("kernel-*"):
            shutil.rmtree(old)
        _unpack(packages, image)
    return image


def _resolve() -> list[str]:
    """The four packages: image, headers, common headers and kbuild."""
    release = _depends(META_PACKAGE, r"linux-image-(\S+)").removeprefix("linux-image-")
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


def _version(package: str) -> str:
    shown = run(["apt-cache", "show", "--no-all-versions", package], timeout_s=150).decode()
    found = re.search(r"^Version: (\S+)$", shown, re.MULTILINE)
    if found is None:
        raise KernelTierError(f"apt shows no version of {package}; run apt-get update")
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
    (image.root / STAMP).touch()
