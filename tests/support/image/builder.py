"""Owns the image that the tests look at: its base, its build, its containers.

Each checkout has a storage of its own below build/image. Base, locked dependencies and image come into it from the
cache, where they are made once for each state of their inputs.

As a program: `python -m tests.support.image.builder --check` says what the machine lacks, `--prepare` builds the image.
Standard library only.
"""

from __future__ import annotations

import fcntl
import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import cache
from tests.support.tiers import TierError, answer

CHECKOUT = Path(__file__).resolve().parents[3]
FOLDER = CHECKOUT / "build" / "image"
CODENAME = "bookworm"  # Debian 12, the Containerfile's base
BASE = f"localhost/debian:{CODENAME}"
TAG = "localhost/driver-manager"
DEPENDENCIES = f"{TAG}-dependencies"
INPUTS_OF_DEPENDENCIES = ("Containerfile", ".containerignore", "scripts/image", "images", "requirements")
INPUTS = (*INPUTS_OF_DEPENDENCIES, "pyproject.toml", "README.md", "LICENSE", "driver_manager")
BASE_KEPT_S = 14 * 24 * 3600
"""How long a base and Debian's packages on it come from the cache, before they are made with the mirror's newest."""

EPOCH = "1700000000"  # the time of everything in the image, so that it does not depend on the last commit's
BUILD_TIMEOUT_S = 1_500.0
RUN_TIMEOUT_S = 600.0
SAID_FOLDER = "/mnt"
"""Where a container has the files for what its command says; every image has this folder."""

PACKAGE_OF = {
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "wget": "wget",
    "unshare": "util-linux",
    "qemu-aarch64-static": "qemu-user-static",
}


class ImageTierError(TierError):
    """The image could not be built, or a container not be run; the message says why."""


@dataclass(frozen=True)
class CommandResult:
    status: int
    out: str
    err: str


@dataclass(frozen=True)
class Image:
    """A built image: its name in the tests' own storage, and how long the build took (0: it was there)."""

    name: str
    took_s: float

    @property
    def state(self) -> str:
        """Its tag: the key of what it was built from."""
        return self.name.rpartition(":")[2]

    def inspect(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(_buildah("inspect", "--type", "image", self.name))["OCIv1"]
        return found

    def layers(self) -> dict[str, int]:
        """The digest of each layer's content, and the bytes of its tar archive, lowest layer first."""
        known = json.loads((FOLDER / "storage/vfs-layers/layers.json").read_text())
        sizes = {layer["diff-digest"]: int(layer["diff-size"]) for layer in known if "diff-digest" in layer}
        return {digest: sizes[digest] for digest in self.inspect()["rootfs"]["diff_ids"]}

    @contextmanager
    def container(self) -> Iterator[Container]:
        made = Container(_buildah("from", "--pull=never", self.name).strip())
        try:
            yield made
        finally:
            _buildah("rm", made.name)

    def root(self) -> Path:
        """A folder with the image's files, which no test may change. It stays for later runs."""
        name = f"{self.state}-pristine"
        known = _buildah("containers", "--format", "{{.ContainerName}}").split()
        if name not in known:
            _buildah("from", "--pull=never", "--name", name, self.name)
        return Container(name).root()


@dataclass(frozen=True)
class Container:
    name: str

    def root(self) -> Path:
        return Path(_buildah("mount", self.name).strip())

    def run(self, *argv: str, env: Mapping[str, str] | None = None, volumes: Sequence[str] = ()) -> CommandResult:
        """Run a command in it with the image's environment, `env` and `volumes` (as buildah takes them).

        What it says goes into files: with its isolation by chroot buildah ends when the command does, and drops what it
        has not copied by then (buildah, chroot/run_common.go, runUsingChrootMain).
        """
        options = [f"--env={name}={value}" for name, value in (env or {}).items()]
        words = ["sh", "-c", f'exec "$@" >{SAID_FOLDER}/out 2>{SAID_FOLDER}/err', "sh", *argv]
        with tempfile.TemporaryDirectory() as folder:
            options += [f"--volume={volume}" for volume in (*volumes, f"{folder}:{SAID_FOLDER}")]
            done = run(["buildah", "run", *options, self.name, "--", *words], timeout_s=RUN_TIMEOUT_S)
            files = (Path(folder, name) for name in ("out", "err"))
            out, err = (path.read_text() if path.exists() else "" for path in files)
        return CommandResult(done.status, out + done.out, err + done.err)


def missing() -> list[str]:
    lines = [
        f"{command} (Debian package {package})"
        for command, package in PACKAGE_OF.items()
        if shutil.which(command, path=_environment()["PATH"]) is None
    ]
    if not Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists():
        lines.append("Debian's keys (Debian package debian-archive-keyring)")
    if os.geteuid() != 0:
        lines.append("root (debootstrap, and containers without user namespaces)")
    return lines


def built() -> Image:
    """The image of this checkout as it is now, from the storage or the cache, else built. Raises ImageTierError."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (FOLDER / "storage.conf").write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{FOLDER}/storage"\nrunroot = "{FOLDER}/run"\n'
        )
        base = cache.key(CODENAME, str(int(time.time()) // BASE_KEPT_S), inspect.getsource(_bootstrap))
        below = f"{DEPENDENCIES}:{cache.key(base, EPOCH, *_inputs(INPUTS_OF_DEPENDENCIES))}"
        image = Image(f"{TAG}:{cache.key(below, *_inputs(INPUTS))}", 0.0)
        known = _images()
        if image.name in known:
            return image
        _remove_old(known, below)
        began = time.monotonic()
        _have(BASE, base, _bootstrap)

        def build_whole() -> None:
            _have(below, Image(below, 0.0).state, lambda: build_dependencies(below))
            build(image.name, below)

        _have(image.name, image.state, build_whole)
        return Image(image.name, time.monotonic() - began)


def build_dependencies(name: str) -> None:
    """Run scripts/image for the layers below the package's. Raises ImageTierError."""
    checked([str(CHECKOUT / "scripts/image"), "--tag", name, "--base", BASE, "--dependencies-only"], BUILD_TIMEOUT_S)


def build(name: str, dependencies: str | None = None) -> Image:
    """Run scripts/image, with all layers or on `dependencies`. Raises ImageTierError."""
    began = time.monotonic()
    below = ["--dependencies", dependencies] if dependencies else ["--base", BASE]
    checked([str(CHECKOUT / "scripts/image"), "--tag", name, *below], BUILD_TIMEOUT_S)
    return Image(name, time.monotonic() - began)


def build_sample_driver(name: str, base: Image, driver: Path) -> Image:
    """Build the sample driver container with the tree `driver`. Raises ImageTierError."""
    return build_driver_container("sample-driver", name, base, driver=driver)


def build_driver_container(kind: str, name: str, base: Image, **contexts: Path) -> Image:
    """Build the driver container images/`kind`, whose further build contexts are these. Raises ImageTierError."""
    began = time.monotonic()
    contexts = {"common": CHECKOUT / "images/common", **contexts}
    words = ["buildah", "build", "--quiet", "--layers=false"]
    words += [f"--build-context={context}={folder}" for context, folder in contexts.items()]
    words += [f"--build-arg=BASE={base.name}", f"--tag={name}", str(CHECKOUT / "images" / kind)]
    checked(words, BUILD_TIMEOUT_S)
    return Image(name, time.monotonic() - began)


def remove(image: Image) -> None:
    _buildah("rmi", "--force", image.name)


def remove_dependencies() -> None:
    for name in _images():
        if name.startswith(f"{DEPENDENCIES}:"):
            remove(Image(name, 0.0))


def mirror() -> str:
    """The address of the Debian mirror that this machine's apt uses. Raises ImageTierError."""
    form = "$(ORIGIN) $(COMPONENT) $(CODENAME) $(REPO_URI)"
    listed = checked(["apt-get", "indextargets", "--format", form, "Created-By: Packages"], 30).splitlines()
    for line in listed:
        origin, component, codename, address = line.split()
        if (origin, component) == ("Debian", "main") and "-" not in codename:
            return address
    raise ImageTierError("apt on this machine has no Debian mirror in its sources; run apt-get update")


def checked(argv: Sequence[str], timeout_s: float, folder: Path = CHECKOUT) -> str:
    done = run(argv, timeout_s=timeout_s, folder=folder)
    if done.status:
        tail = "\n".join(f"{done.out}\n{done.err}".strip().splitlines()[-30:])
        raise ImageTierError(f"{' '.join(argv[:5])} … exited {done.status}:\n{tail}")
    return done.out


def run(argv: Sequence[str], *, timeout_s: float, folder: Path = CHECKOUT) -> CommandResult:
    """Run a command with buildah's settings. Raises ImageTierError where it is absent or takes over `timeout_s`."""
    try:
        done = subprocess.run(
            list(argv), env=_environment(), capture_output=True, text=True, timeout=timeout_s, check=False, cwd=folder
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ImageTierError(f"{' '.join(argv[:4])}: {error}") from error
    return CommandResult(done.returncode, done.stdout, done.stderr)


def _bootstrap() -> None:
    """Put a bare Debian into the storage, as the base. Raises ImageTierError."""
    tree = FOLDER / "base"
    if tree.exists():
        shutil.rmtree(tree)
    # The cache keeps what was downloaded, should only the last step fail.
    cache = FOLDER / "debs"
    cache.mkdir(exist_ok=True)
    words = ["debootstrap", "--variant=minbase", f"--cache-dir={cache}", CODENAME, str(tree), mirror()]
    checked(words, BUILD_TIMEOUT_S)
    name = _buildah("from", "scratch").strip()
    root = _buildah("mount", name).strip()
    checked(["cp", "-a", f"{tree}/.", root], RUN_TIMEOUT_S)
    _buildah("config", "--cmd", "/bin/sh", name)
    _buildah("commit", "--quiet", "--rm", name, BASE)
    shutil.rmtree(tree)


def _have(name: str, state: str, make: Callable[[], object]) -> None:
    """Have the image `name` in the storage: as it is, else from the cache, else made, and then in the cache too."""
    if name in _images():
        return
    kind = name.rpartition("/")[2].partition(":")[0]

    def fill(fresh: Path) -> None:
        make()
        _buildah("push", "--quiet", "--disable-compression", name, f"dir:{fresh}")

    kept = cache.entry(kind, state, fill)
    if name not in _images():
        _buildah("tag", _buildah("pull", "--quiet", f"dir:{kept}").strip(), name)


def _images() -> list[str]:
    return _buildah("images", "--format", "{{.Name}}:{{.Tag}}").split()


def _remove_old(known: Sequence[str], below: str) -> None:
    """Remove what earlier states of the checkout left in its storage; a base goes with the dependencies on it."""
    for name in _buildah("containers", "--format", "{{.ContainerName}}").split():
        _buildah("rm", name)
    for name in known:
        if below not in known or name not in {BASE, below}:
            _buildah("rmi", "--force", name)


def _inputs(names: Sequence[str]) -> list[str | Path]:
    """What the image is built from, each file with its path, as parts of a key."""
    files: list[Path] = []
    for path in (CHECKOUT / name for name in names):
        files += path.rglob("*") if path.is_dir() else [path]
    sources = sorted(path for path in files if path.is_file() and path.suffix != ".pyc")
    return [part for path in sources for part in (str(path.relative_to(CHECKOUT)), path)]


def _buildah(*arguments: str) -> str:
    return checked(["buildah", *arguments], RUN_TIMEOUT_S)


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PATH": os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"]),
        "BUILDAH_ISOLATION": "chroot",
        "SOURCE_DATE_EPOCH": EPOCH,
        "CONTAINERS_STORAGE_CONF": str(FOLDER / "storage.conf"),
    }


if __name__ == "__main__":
    sys.exit(answer("image", missing(), lambda: built().name))
