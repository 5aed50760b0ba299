"""Images of a test node as docker archives in the cache, made once for each state of their inputs."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support import cache
from tests.support.control_plane.api import Json
from tests.support.image import builder
from tests.support.node.namespaces import NodeTierError
from tests.support.node.place import CHECKOUT

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Link:
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


PAUSE = "docker.io/library/node-pause:test"
OPERAND = "docker.io/library/operand:test"
REPOSITORY = "docker.io/library"
MANAGER = f"{REPOSITORY}/driver-manager:0.1.0"
DRIVER = f"{REPOSITORY}/driver-manager-sample-driver"
SAMPLE = "localhost/driver-manager-sample-driver"
TAGS = {"2.0.1": "0.1.0", "2.0.2": "0.1.1"}
"""Of the sample driver's images, by the version of the driver in them; the first is the one that deploy/ names."""

KERNEL = os.uname().release

STAND_INS = Path(__file__).with_name("stand_ins.py")
FAKE_TOOLS = CHECKOUT / "driver_manager/sandbox/fake_tools.py"
SOURCES = (Path(__file__),)
"""What makes the archives."""
TOOLS = ("rmmod", "modprobe", "modinfo", "insmod")

_PAUSE_SOURCE = """\
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void leave(int number) { (void)number; _exit(0); }
static void reap(int number) { (void)number; while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) { signal(SIGTERM, leave); signal(SIGINT, leave); signal(SIGCHLD, reap); for (;;) pause(); }
"""


def tiny_archives() -> list[Path]:
    """The sandbox's image, and one whose containers do what they are told by a busybox shell."""
    busybox = shutil.which("busybox")
    assert busybox

    def make(fresh: Path) -> None:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            source, program = folder / "pause.c", folder / "pause"
            source.write_text(_PAUSE_SOURCE)
            _checked(["gcc-12", "-static", "-Os", "-o", str(program), str(source)])
            pause = of_program(PAUSE, folder, program, ["/pause"])
            shell = of_program(OPERAND, folder, Path(busybox), ["/busybox", "sh", "-c"], ("sh", "sleep"))
            write(fresh / "tiny.tar", [pause, shell])

    return [cache.entry("tiny-images", cache.key(Path(busybox), *SOURCES), make) / "tiny.tar"]


@dataclass(frozen=True)
class Laid:
    """What is laid on the driver's images as they were built.

    `trees` has the driver of each version, `files` what comes on every image beside it, `programs` what comes on the
    drivers' alone, `env` what the driver's container is told. `kind` begins the archive's name; `managers`, `driver`
    and `tags` are the images' names, by the version of the driver the last.
    """

    kind: str
    trees: Mapping[str, Mapping[str, bytes]]
    files: Mapping[str, bytes | Link] = field(default_factory=dict)
    env: tuple[str, ...] = ()
    programs: Mapping[str, bytes | Link] = field(default_factory=dict)
    managers: tuple[str, ...] = (MANAGER,)
    driver: str = DRIVER
    tags: Mapping[str, str] = field(default_factory=lambda: TAGS)

    def key(self) -> str:
        return cache.key(repr(self), *SOURCES)


def with_stand_ins() -> Laid:
    trees = {version: driver_tree(version) for version in TAGS}
    # Its own /sys is a fresh one, and the host's is not there.
    return Laid("driver", trees, stand_ins(), ("SYS_ROOT=/run/rbln/.stand-ins/sys",))


def driver_archive(laid: Laid) -> Path:
    """The built image and a sample driver for each version, named as the overlays of deploy/ name them by default.

    Raises TierError.
    """
    image = builder.built()
    name = f"{laid.kind}.tar"

    def make(fresh: Path) -> None:
        with tempfile.TemporaryDirectory(dir=fresh) as plain:
            _export(image, Path(plain))
            _write_archive(Path(plain), laid, fresh / name)

    return cache.entry(f"{laid.kind}-images", f"{image.state}-{laid.key()}", make) / name


def _export(image: builder.Image, folder: Path) -> None:
    """The image, and the sample driver's without a driver, from buildah's storage to `folder`."""
    with tempfile.TemporaryDirectory() as tree:
        Path(tree, "lib/modules").mkdir(parents=True)
        sample = builder.build_sample_driver(f"{SAMPLE}:node", image, Path(tree))
    for name, one in (("manager", image), ("driver", sample)):
        words = ["buildah", "push", "--quiet", one.name, f"docker-archive:{folder / name}.tar"]
        builder.checked(words, builder.BUILD_TIMEOUT_S)
    builder.remove(sample)


def _write_archive(plain: Path, laid: Laid, archive: Path) -> None:
    with tempfile.TemporaryDirectory(dir=archive.parent) as made:
        folder = Path(made)
        manager = read(plain / "manager.tar", MANAGER, folder)
        driver = read(plain / "driver.tar", DRIVER, folder)
        manager = manager.on_top(MANAGER, folder, laid.files) if laid.files else manager
        packed = [replace(manager, name=name) for name in laid.managers]
        for version, tree in laid.trees.items():
            files = {f"opt/driver/{path}": content for path, content in tree.items()}
            name = f"{laid.driver}:{laid.tags[version]}"
            packed.append(driver.on_top(name, folder, {**laid.files, **laid.programs, **files}, laid.env))
        write(archive, packed)


def stand_ins() -> dict[str, bytes | Link]:
    """Stand-ins for kmod's tools, in the place of the image's own."""
    program = '#!/bin/sh\nexec python3 -I -S /opt/stand-ins/stand_ins.py {} "$@"\n'
    tools = {f"usr/sbin/{tool}": program.format(tool).encode() for tool in TOOLS}
    return {
        "opt/stand-ins/stand_ins.py": STAND_INS.read_bytes(),
        "opt/stand-ins/fake_tools.py": FAKE_TOOLS.read_bytes(),
        **tools,
    }


def driver_tree(version: str, name: str = "rebellions") -> dict[str, bytes]:
    """A driver as the stand-in modprobe reads it: a module on another one."""
    folder = f"lib/modules/{KERNEL}"
    facts = {"version": version, "vermagic": f"{KERNEL} SMP"}
    return {
        f"{folder}/{name}_core.ko": json.dumps(facts).encode(),
        f"{folder}/{name}.ko": json.dumps(facts | {"depends": [f"{name}_core"]}).encode(),
        f"{folder}/modules.dep": f"{name}.ko: {name}_core.ko\n{name}_core.ko:\n".encode(),
    }


def _checked(argv: Sequence[str]) -> None:
    done = subprocess.run(list(argv), capture_output=True, text=True, timeout=builder.RUN_TIMEOUT_S, check=False)
    if done.returncode:
        raise NodeTierError(f"{' '.join(argv[:3])} … ended with {done.returncode}:\n{done.stderr}")
