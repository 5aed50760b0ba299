"""The release folder: all files of a release, reproducible from one commit.

Times are the commit's, owners are root, names are sorted. It needs no network: `scripts/image` has built the images.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import yaml

from scripts.releasing import chart, provenance
from scripts.releasing.kustomize import NAMESPACES, OVERLAYS, POLICIES, ROLLOUTS, render

CHECKOUT = Path(__file__).resolve().parents[2]
NAME = "driver-manager"
SUMS = "SHA256SUMS"
BILL = "usr/share/sbom/driver-manager.cdx.json"
PLAIN, PROGRAM = 0o644, 0o755


class ReleaseError(Exception):
    """A release could not be made; the message has the reason."""


def version() -> str:
    """The version in pyproject.toml."""
    return str(tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"])


def make(
    folder: Path,
    images: Mapping[str, str],
    epoch_s: int,
    bases: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    builder: str = provenance.BUILD_TYPE,
) -> list[Path]:
    """Fill the empty folder. The files, sums last.

    `images` has a built image's name for each architecture, `bases` name and digest of what it was built on. Raises
    ReleaseError.
    """
    if drifted := chart.drifted(chart.templates()):
        raise ReleaseError(f"deploy/charts/driver-manager is out of date ({', '.join(drifted)}); run scripts/chart")
    number = version()
    for overlay in (*OVERLAYS, *ROLLOUTS, *NAMESPACES, *POLICIES):
        (folder / f"{overlay.replace('/', '-')}.yaml").write_text(manifest(overlay))
    files = sorted(path for path in chart.CHART.rglob("*") if path.is_file())
    members = [(f"{NAME}/{path.relative_to(chart.CHART).as_posix()}", path.read_bytes()) for path in files]
    packed = gzip.compress(archive(members, epoch_s), mtime=epoch_s)
    (folder / f"{NAME}-{number}.tgz").write_bytes(packed)
    (folder / "CHANGES.md").write_text(changes((CHECKOUT / "CHANGELOG.md").read_text(), number))
    for architecture, image in sorted(images.items()):
        _write_image(folder, f"{NAME}-{number}-{architecture}", image, architecture, epoch_s)
    _write_provenance(folder, number, provenance.provenance(CHECKOUT, number, epoch_s, bases, builder))
    made = sorted(folder.iterdir())
    (folder / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in provenance.sums(made).items()))
    return [*made, folder / SUMS]


def _write_provenance(folder: Path, number: str, predicate: provenance.Json) -> None:
    made = provenance.statement(provenance.PROVENANCE, predicate, provenance.sums(folder.iterdir()))
    (folder / f"{NAME}-{number}.provenance.json").write_text(json.dumps(made, indent=2) + "\n")


def manifest(overlay: str) -> str:
    """One file with all objects of an overlay of `deploy/`, for `kubectl apply --server-side -f`."""
    header = f"# Made from deploy/overlays/{overlay} of driver-manager {version()}.\n"
    objects = json.loads(json.dumps(render(overlay)))  # each part once, so that none becomes an alias of another
    return header + str(yaml.safe_dump_all(objects, sort_keys=False, width=10**6, explicit_start=True))


def changes(changelog: str, number: str) -> str:
    """The section of this version, without those of others. Raises ReleaseError."""
    found = re.search(rf"^## \[{re.escape(number)}\].*?(?=^## \[|^\[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    if not found:
        raise ReleaseError(f"CHANGELOG.md has no section for {number}")
    return found[0].strip() + "\n"


def archive(members: Iterable[tuple[str, bytes]], epoch_s: int) -> bytes:
    """A tar archive that depends on nothing but this."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), epoch_s, PLAIN
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _write_image(folder: Path, name: str, image: str, architecture: str, epoch_s: int) -> None:
    """The image as an OCI archive, and its bill of materials. Raises ReleaseError."""
    config = json.loads(_buildah("inspect", "--type", "image", image))["OCIv1"]
    if config["architecture"] != architecture:
        raise ReleaseError(f"{image} is for {config['architecture']}, not {architecture}")
    with tempfile.TemporaryDirectory(dir=folder.parent) as layout:
        _buildah("push", "--quiet", "--format", "oci", image, f"oci:{layout}:{NAME}:{version()}")
        files = sorted(path for path in Path(layout).rglob("*") if path.is_file())
        members = [(path.relative_to(layout).as_posix(), path.read_bytes()) for path in files]
        (folder / f"{name}.oci.tar").write_bytes(archive(members, epoch_s))
    container = _buildah("from", "--pull=never", image).strip()
    try:
        root = Path(_buildah("mount", container).strip())
        (folder / f"{name}.cdx.json").write_bytes((root / BILL).read_bytes())
    finally:
        _buildah("rm", container)


def _buildah(*arguments: str) -> str:
    try:
        done = subprocess.run(["buildah", *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ReleaseError(f"buildah: {error}") from error
    if done.returncode:
        raise ReleaseError(f"buildah {' '.join(arguments[:2])} …: {done.stderr.strip()}")
    return done.stdout


def _base(text: str) -> tuple[str, tuple[str, str]]:
    """Architecture, name and digest of ARCH=NAME@DIGEST."""
    architecture, _, image = text.partition("=")
    name, _, digest = image.rpartition("@")
    return architecture, (name, digest)


def main(words: Sequence[str] | None = None) -> int:
    """0, or 1 with what is wrong."""
    parser = argparse.ArgumentParser(description="Writes a release folder; scripts/release is the way to it.")
    parser.add_argument("--image", action="append", default=[], metavar="ARCH=NAME", help="a built image")
    parser.add_argument("--base", action="append", default=[], metavar="ARCH=NAME@DIGEST", help="what it was built on")
    parser.add_argument("--builder", default=provenance.BUILD_TYPE, help="a URI that identifies who builds")
    parser.add_argument("folder", type=Path, help="is made; refused where it is there already")
    asked = parser.parse_args(words)
    images = dict(one.split("=", 1) for one in asked.image)
    fresh = asked.folder.with_name(f".{asked.folder.name}.part")
    try:
        if asked.folder.exists():
            raise ReleaseError(f"{asked.folder} is there already")
        fresh.mkdir(parents=True)
        try:
            epoch_s, bases = int(os.environ["SOURCE_DATE_EPOCH"]), dict(map(_base, asked.base))
            for path in make(fresh, images, epoch_s, bases, asked.builder):
                print(f"{path.stat().st_size:>12,}  {path.name}")
            fresh.rename(asked.folder)
        finally:
            _removed(fresh)
    except (ReleaseError, OSError, subprocess.CalledProcessError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def _removed(folder: Path) -> None:
    """What a release that failed has left."""
    if folder.exists():
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


if __name__ == "__main__":
    sys.exit(main())
