"""Owns the binaries of the tiers cluster and node. `python -m tests.support.assets control-plane` prints their folder.

Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import os
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import cache
from tests.support.tiers import TierError

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Assets:
    """Binaries in the folder that `variable` names, in `built` of a checkout, or as an archive in `archived`."""

    what: str
    variable: str
    built: str
    archived: str
    binaries: tuple[str, ...]

    def folder(self, checkout: Path = CHECKOUT) -> Path:
        """The folder that is named, else the checkout's, else the archive, unpacked in the cache. Raises TierError."""
        if named := os.environ.get(self.variable):
            if absent := self._absent(Path(named)):
                raise TierError(f"{self.variable}={named} lacks {', '.join(absent)}")
            return Path(named).absolute()
        built = checkout / "build" / self.built
        if not self._absent(built):
            return built
        shared = checkout.parent / "shared" / self.archived
        archives, sums = sorted(shared.glob("*.tar.xz")), shared / "SHA256SUMS"
        if not archives or not sums.exists():
            raise TierError(f"no {self.what}: set {self.variable} or fill build/{self.built}")
        found = cache.entry(self.built, cache.key(archives[0], sums), lambda fresh: _unpack(archives[0], sums, fresh))
        if absent := self._absent(found):
            raise TierError(f"{archives[0]} lacks {', '.join(absent)}")
        return found

    def _absent(self, folder: Path) -> list[str]:
        return [name for name in self.binaries if not os.access(folder / name, os.X_OK)]


CONTROL_PLANE = Assets(
    "control plane", "KUBEBUILDER_ASSETS", "envtest", "envtest", ("etcd", "kube-apiserver", "kube-controller-manager")
)
KUBELET = Assets("kubelet", "NODE_TEST_ASSETS", "kubelet", "node", ("kubelet",))
control_plane, kubelet = CONTROL_PLANE.folder, KUBELET.folder


def tool(name: str, checkout: Path = CHECKOUT) -> Path:
    """The program `name` of build/vap, or of its archive in shared/vap, unpacked in the cache. Raises TierError."""
    built = checkout / "build/vap" / name
    if os.access(built, os.X_OK):
        return built
    shared = checkout.parent / "shared/vap"
    archives, sums = sorted(shared.glob(f"{name}-*.tar.xz")), shared / "SHA256SUMS"
    if not archives or not sums.exists():
        raise TierError(f"no {name}: fill build/vap")
    made = cache.entry(name, cache.key(archives[-1]), lambda fresh: _unpack_tool(archives[-1], sums, name, fresh))
    return made / name


def _unpack_tool(archive: Path, sums: Path, name: str, folder: Path) -> None:
    if hashlib.sha256(archive.read_bytes()).hexdigest() != _digests(sums).get(archive.name):
        raise TierError(f"{archive} does not match its SHA256SUMS")
    if name not in (found := dict(_files(archive))):
        raise TierError(f"{archive} cannot be unpacked: it has no file {name}")
    _put(folder / name, found[name])


def _unpack(archive: Path, sums: Path, folder: Path) -> None:
    wanted = _digests(sums)
    for name, content in _files(archive):
        if hashlib.sha256(content).hexdigest() == wanted.get(name):
            _put(folder / name, content)
            del wanted[name]
    if wanted:
        raise TierError(f"{archive} does not match its SHA256SUMS: {', '.join(wanted)}")


def _put(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    file.chmod(0o755)


def _digests(sums: Path) -> dict[str, str]:
    return {name: digest for digest, name in (line.split(maxsplit=1) for line in sums.read_text().splitlines())}


def _files(archive: Path) -> Iterator[tuple[str, bytes]]:
    """In the archive's order, or all of it is decompressed for each. Raises TierError."""
    try:
        with tarfile.open(archive) as packed:
            for member in packed:
                if (source := packed.extractfile(member)) is not None:
                    yield member.name.removeprefix("./"), source.read()
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise TierError(f"{archive} cannot be unpacked: {error}") from error


def main() -> int:
    known = {"control-plane": CONTROL_PLANE, "kubelet": KUBELET}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("assets", choices=known, nargs="?", default="control-plane")
    try:
        print(known[parser.parse_args().assets].folder())
    except TierError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
