"""Owns docker archives: images with their layers, read from one, made anew, and with a layer of files on top.

Must not import the product.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.control_plane.api import Json

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Link:
    """A symbolic link in a layer."""

    target: str


@dataclass(frozen=True)
class Packed:
    """An image under `name`; its layers are files that are named by their digests, lowest first."""

    name: str
    config: Json
    layers: tuple[Path, ...]

    def on_top(self, name: str, folder: Path, files: Mapping[str, bytes | Link], env: Iterable[str] = ()) -> Packed:
        """This image with a layer of `files` (programs, or links) on top and further environment, as `name`."""
        layer = _layer(files, folder)
        config = copy.deepcopy(self.config)
        config["rootfs"]["diff_ids"].append(f"sha256:{layer.name}")
        config["config"]["Env"] = [*config["config"].get("Env", []), *env]
        config.pop("history", None)  # has to have an entry for each layer, or none
        return Packed(name, config, (*self.layers, layer))


def of_program(name: str, folder: Path, program: Path, entrypoint: list[str], links: Iterable[str] = ()) -> Packed:
    """An image of one program, with links to it in /bin."""
    place = entrypoint[0].lstrip("/")
    config = {
        "architecture": ARCHITECTURES[os.uname().machine],
        "os": "linux",
        "config": {"Entrypoint": entrypoint, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": []},
    }
    files: dict[str, bytes | Link] = {place: program.read_bytes()}
    files |= {f"bin/{link}": Link(f"/{place}") for link in links}
    return Packed(name, config, ()).on_top(name, folder, files)


def read(archive: Path, name: str, folder: Path) -> Packed:
    """The only image of an archive, as `name`; its layers are laid in `folder`."""
    with tarfile.open(archive) as source:
        (described,) = json.loads(_content(source, "manifest.json").read())
        config: Json = json.loads(_content(source, described["Config"]).read())
        layers = []
        for member, digest in zip(described["Layers"], config["rootfs"]["diff_ids"], strict=True):
            layers.append(folder / digest.removeprefix("sha256:"))
            if not layers[-1].exists():
                with layers[-1].open("wb") as target:
                    shutil.copyfileobj(_content(source, member), target)
    return Packed(name, config, tuple(layers))


def write(archive: Path, images: Iterable[Packed]) -> None:
    """All images in one archive, what they share once; it is there whole or not at all."""
    described, written = [], set[str]()
    fresh = archive.with_suffix(".fresh")
    with tarfile.open(fresh, "w") as target:
        for image in images:
            data = json.dumps(image.config).encode()
            config = f"{hashlib.sha256(data).hexdigest()}.json"
            _add(target, config, data)
            for layer in image.layers:
                if layer.name not in written:
                    written.add(layer.name)
                    target.add(layer, f"{layer.name}.tar")
            layers = [f"{layer.name}.tar" for layer in image.layers]
            described.append({"Config": config, "RepoTags": [image.name], "Layers": layers})
        _add(target, "manifest.json", json.dumps(described).encode())
    fresh.rename(archive)


def _layer(files: Mapping[str, bytes | Link], folder: Path) -> Path:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as layer:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, Link):
                entry.type, entry.linkname = tarfile.SYMTYPE, content.target
                layer.addfile(entry)
            else:
                entry.size, entry.mode = len(content), 0o755
                layer.addfile(entry, io.BytesIO(content))
    path = folder / hashlib.sha256(data.getvalue()).hexdigest()
    path.write_bytes(data.getvalue())
    return path


def _add(target: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    target.addfile(entry, io.BytesIO(data))


def _content(source: tarfile.TarFile, name: str) -> io.BufferedIOBase:
    """A member's content, behind links: buildah names a layer that it has written already by one."""
    found = source.extractfile(name)
    assert found is not None, name
    return found  # type: ignore[return-value]  # a reader of a tar member, which is one
