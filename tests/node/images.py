"""Owns the images of a test node, as docker archives in build/node/images: made once for each state of their inputs.

The driver's images are those that the image tier builds, with a layer of stand-ins on top; the operands' and the
sandbox's hold one static program. Must not import the product.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.image import builder
from tests.node import archives
from tests.node.namespaces import CHECKOUT, FOLDER, NodeTierError

PAUSE = "docker.io/library/node-pause:test"
OPERAND = "docker.io/library/operand:test"
REPOSITORY = "docker.io/library"
SAMPLE = "localhost/driver-manager-sample-driver"
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
    archive = FOLDER / "images/tiny.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    busybox = shutil.which("busybox")
    assert busybox
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        source, program = folder / "pause.c", folder / "pause"
        source.write_text(_PAUSE_SOURCE)
        _checked(["gcc-12", "-static", "-Os", "-o", str(program), str(source)])
        pause = archives.of_program(PAUSE, folder, program, ["/pause"])
        shell = archives.of_program(OPERAND, folder, Path(busybox), ["/busybox", "sh", "-c"], ("sh", "sleep"))
        archives.write(archive, [pause, shell])
    return [archive]


def driver_archives() -> list[Path]:
    """The built image and two sample drivers, named as the overlays of deploy/ name them. Raises ImageTierError."""
    image = builder.built()
    inputs = (Path(__file__), Path(archives.__file__), STAND_INS, FAKE_TOOLS)
    key = hashlib.sha256(b"".join(path.read_bytes() for path in inputs) + KERNEL.encode()).hexdigest()[:8]
    archive = FOLDER / "images" / f"driver-{image.name.rpartition(':')[2]}-{key}.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with (archive.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            for old in archive.parent.glob("driver-*.tar"):
                old.unlink()
            _make_driver_archive(image, archive)
    return [archive]


def _make_driver_archive(image: builder.Image, archive: Path) -> None:
    """The images as they were built, with layers on top: the stand-ins, and a driver tree for each version."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as made, tempfile.TemporaryDirectory() as tree:
        folder = Path(made)
        first, *others = TAGS
        _write_driver_tree(Path(tree), first)
        sample = builder.build_sample_driver(f"{SAMPLE}:node", image, Path(tree))
        manager = _exported(image.name, folder).on_top(f"{REPOSITORY}/driver-manager:0.1.0", folder, _stand_ins())
        driver = _exported(sample.name, folder)
        builder.remove(sample)
        packed = [manager]
        for version in (first, *others):
            name = f"{REPOSITORY}/driver-manager-sample-driver:{TAGS[version]}"
            files = {f"opt/driver/{path}": content for path, content in _driver_tree(version).items()}
            # Its own /sys is a fresh one, and the host's is not there.
            packed.append(driver.on_top(name, folder, {**_stand_ins(), **files}, ["SYS_ROOT=/run/rbln/.stand-ins/sys"]))
        archives.write(archive, packed)


def _exported(name: str, folder: Path) -> archives.Packed:
    """An image of buildah's storage."""
    part = folder / "part.tar"
    part.unlink(missing_ok=True)
    builder.checked(["buildah", "push", "--quiet", name, f"docker-archive:{part}"], builder.BUILD_TIMEOUT_S)
    return archives.read(part, name, folder)


def _stand_ins() -> dict[str, bytes | archives.Link]:
    """Stand-ins for kmod's tools, in the place of the image's own."""
    program = '#!/bin/sh\nexec python3 -I -S /opt/stand-ins/stand_ins.py {} "$@"\n'
    tools = {f"usr/sbin/{tool}": program.format(tool).encode() for tool in TOOLS}
    return {
        "opt/stand-ins/stand_ins.py": STAND_INS.read_bytes(),
        "opt/stand-ins/fake_tools.py": FAKE_TOOLS.read_bytes(),
        **tools,
    }


def _write_driver_tree(tree: Path, version: str) -> None:
    for name, content in _driver_tree(version).items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(content)


def _driver_tree(version: str) -> dict[str, bytes]:
    """A driver as the stand-in modprobe reads it: a module on another one."""
    folder = f"lib/modules/{KERNEL}"
    facts = {"version": version, "vermagic": f"{KERNEL} SMP"}
    return {
        f"{folder}/rebellions_core.ko": json.dumps(facts).encode(),
        f"{folder}/rebellions.ko": json.dumps(facts | {"depends": ["rebellions_core"]}).encode(),
        f"{folder}/modules.dep": b"rebellions.ko: rebellions_core.ko\nrebellions_core.ko:\n",
    }


def _checked(argv: Sequence[str]) -> None:
    done = subprocess.run(list(argv), capture_output=True, text=True, timeout=builder.RUN_TIMEOUT_S, check=False)
    if done.returncode:
        raise NodeTierError(f"{' '.join(argv[:3])} … ended with {done.returncode}:\n{done.stderr}")
