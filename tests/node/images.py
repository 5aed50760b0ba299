"""Owns the images of a test node, as docker archives in build/node/images: made once for each state of their inputs.

The driver's images are those that the image tier builds, with one layer of stand-ins on top; the operands' and the
sandbox's hold one static program. Must not import the product.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.image import builder
from tests.node.namespaces import CHECKOUT, FOLDER, NodeTierError

PAUSE = "docker.io/library/node-pause:test"
OPERAND = "docker.io/library/operand:test"
REPOSITORY = "docker.io/library"
TAGS = {"2.0.1": "0.1.0", "2.0.2": "0.1.1"}
"""Of the sample driver's images, by the version of the driver in them; the first is the one that deploy/ names."""

KERNEL = os.uname().release

STAND_INS = Path(__file__).with_name("stand_ins.py")
FAKE_TOOLS = CHECKOUT / "driver_manager/sandbox/fake_tools.py"
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
    folder = FOLDER / "images"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        source, program = Path(made, "pause.c"), Path(made, "pause")
        source.write_text(_PAUSE_SOURCE)
        _checked(["gcc-12", "-static", "-Os", "-o", str(program), str(source)])
        pause = _archive(folder / "pause.tar", PAUSE, program, ["/pause"], ())
    busybox = shutil.which("busybox")
    assert busybox
    return [pause, _archive(folder / "operand.tar", OPERAND, Path(busybox), ["/busybox", "sh", "-c"], ("sh", "sleep"))]


def driver_archives() -> list[Path]:
    """The built image and two sample drivers, named as the overlays of deploy/ name them. Raises ImageTierError."""
    image = builder.built()
    key = hashlib.sha256(
        Path(__file__).read_bytes() + STAND_INS.read_bytes() + FAKE_TOOLS.read_bytes() + KERNEL.encode()
    ).hexdigest()[:8]
    archive = FOLDER / "images" / f"driver-{image.name.rpartition(':')[2]}-{key}.tar"
    if not archive.exists():
        for old in archive.parent.glob("driver-*.tar"):
            old.unlink()
        _make_driver_archive(image, archive)
    return [archive]


def _make_driver_archive(image: builder.Image, archive: Path) -> None:
    """All driver images in one archive, so that what they share is in it once."""
    names = []
    manager = _with_stand_ins(image.name, "driver-manager:0.1.0")
    names.append(manager)
    for version, tag in TAGS.items():
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder)
            _write_driver_tree(tree, version)
            sample = builder.build_sample_driver(
                f"localhost/driver-manager-sample-driver:{tag}", builder.Image(manager, 0.0), tree
            )
            _set_sys_root(sample.name)
            names.append(sample.name)
    fresh = archive.with_suffix(".fresh")
    fresh.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(names):
            part = f"{folder}/{number}.tar"
            _buildah("push", "--quiet", name, f"docker-archive:{part}:{REPOSITORY}/{name.removeprefix('localhost/')}")
        _merge([Path(folder, f"{number}.tar") for number in range(len(names))], fresh)
    for name in names:
        _buildah("rmi", "--force", name)
    fresh.rename(archive)


def _with_stand_ins(base: str, name: str) -> str:
    """The image `base` with stand-ins for kmod's tools, under a name of its own."""
    container = _buildah("from", "--pull=never", base).strip()
    try:
        root = Path(_buildah("mount", container).strip())
        tools = root / "opt/stand-ins"
        tools.mkdir(parents=True)
        shutil.copy(STAND_INS, tools / "stand_ins.py")
        shutil.copy(FAKE_TOOLS, tools / "fake_tools.py")
        for tool in TOOLS:
            program = root / "usr/sbin" / tool
            program.unlink(missing_ok=True)
            program.write_text(f'#!/bin/sh\nexec python3 -I -S /opt/stand-ins/stand_ins.py {tool} "$@"\n')
            program.chmod(0o755)
        full = f"localhost/{name}"
        _buildah("commit", "--quiet", container, full)
    finally:
        _buildah("rm", container)
    return full


def _set_sys_root(name: str) -> None:
    """Tell the driver container where the stand-ins' /sys is: its own is a fresh one, the host's is not there."""
    container = _buildah("from", "--pull=never", name).strip()
    try:
        _buildah("config", "--env=SYS_ROOT=/run/rbln/.stand-ins/sys", container)
        _buildah("commit", "--quiet", container, name)
    finally:
        _buildah("rm", container)


def _write_driver_tree(tree: Path, version: str) -> None:
    """A driver as the stand-in modprobe reads it: a module on another one."""
    modules = tree / "lib/modules" / KERNEL
    modules.mkdir(parents=True)
    facts = {"version": version, "vermagic": f"{KERNEL} SMP"}
    (modules / "rebellions_core.ko").write_text(json.dumps(facts))
    (modules / "rebellions.ko").write_text(json.dumps(facts | {"depends": ["rebellions_core"]}))
    (modules / "modules.dep").write_text("rebellions.ko: rebellions_core.ko\nrebellions_core.ko:\n")


def _archive(path: Path, name: str, program: Path, entrypoint: Sequence[str], links: Sequence[str]) -> Path:
    """A docker archive of one layer with one program, and links to it in /bin."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        entry = tarfile.TarInfo(Path(entrypoint[0]).name)
        entry.size, entry.mode = program.stat().st_size, 0o755
        with program.open("rb") as content:
            files.addfile(entry, content)
        for link in links:
            entry = tarfile.TarInfo(f"bin/{link}")
            entry.type, entry.linkname = tarfile.SYMTYPE, f"/{Path(entrypoint[0]).name}"
            files.addfile(entry)
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    members = {"layer.tar": layer.getvalue(), "config.json": json.dumps(config).encode()}
    with tarfile.open(path, "w") as files:
        for member, data in (members | {"manifest.json": json.dumps(manifest).encode()}).items():
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            files.addfile(entry, io.BytesIO(data))
    return path


def _merge(parts: Sequence[Path], merged: Path) -> None:
    """One docker archive of several: files are named by their content, so equal names are equal files."""
    manifest = []
    written = set()
    with tarfile.open(merged, "w") as target:
        for part in parts:
            with tarfile.open(part) as source:
                for entry in source:
                    content = source.extractfile(entry)
                    if entry.name == "manifest.json":
                        assert content
                        manifest += json.load(content)
                    elif entry.name != "repositories" and entry.name not in written:
                        written.add(entry.name)
                        target.addfile(entry, content)
        data = json.dumps(manifest).encode()
        entry = tarfile.TarInfo("manifest.json")
        entry.size = len(data)
        target.addfile(entry, io.BytesIO(data))


def _buildah(*words: str) -> str:
    return _checked_said(builder.run(["buildah", *words], timeout_s=builder.BUILD_TIMEOUT_S), words)


def _checked_said(said: builder.Said, words: Sequence[str]) -> str:
    if said.status:
        raise NodeTierError(f"buildah {' '.join(words[:4])} … ended with {said.status}:\n{said.err}")
    return said.out


def _checked(argv: Sequence[str]) -> None:
    done = subprocess.run(list(argv), capture_output=True, text=True, timeout=builder.RUN_TIMEOUT_S, check=False)
    if done.returncode:
        raise NodeTierError(f"{' '.join(argv[:3])} … ended with {done.returncode}:\n{done.stderr}")
