"""The vendors' driver containers on a test node, and a clone of the repository in which a page's commands are typed."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import yaml

from tests.support import cache
from tests.support.control_plane.api import Json
from tests.support.docs.console import commands_below
from tests.support.docs.markdown import DOCS, ROOT
from tests.support.fakes import driver_packages
from tests.support.fakes.driver_packages import run_file, write_deb
from tests.support.image import builder
from tests.support.node import images
from tests.support.node.drivers import remove_ended
from tests.support.node.images import Packed, read, write
from tests.support.node.machine import Machine
from tests.support.node.place import wait_until


class Clone:
    """A clone's deploy/, and an administrator of the node's cluster in it."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine, self.folder = machine, folder
        shutil.copytree(ROOT / "deploy", folder / "deploy")

    def types(self, line: str, **names: str) -> str:
        """Type one line, which ends well; `names` are what its capital letters stand for."""
        for name, meant in names.items():
            line = re.sub(rf"\b{name}\b", meant, line)
        config = f"KUBECONFIG={self.machine.plane.kubeconfig('admin')}"
        script = f"cd {self.folder} && {line}"
        done = self.machine.namespaces.run("env", config, "bash", "--norc", "--noprofile", "-c", script)
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
        return done.stdout


class Reader:
    """Somebody who types the commands of a page, each in its turn."""

    def __init__(self, types: Callable[..., str], lines: Iterable[str]) -> None:
        self._types = types
        self._typed, self._left = list[str](), [*lines]

    def next(self, begins: str, **names: str) -> str:
        """Type the page's next command, which begins like this; what it prints. AssertionError where it does not."""
        line = self._left.pop(0) if self._left else "its end"
        assert line.startswith(begins), f"next on the page is {line!r}, not {begins!r}"
        self._typed.append(line)
        return self._types(line, **names)

    def again(self, begins: str, **names: str) -> str:
        """Type once more the last command that begins like this, as the page says; what it prints."""
        return self._types([line for line in self._typed if line.startswith(begins)][-1], **names)

    def left(self) -> list[str]:
        """The commands of the page that were not typed."""
        return self._left


PAGE = DOCS / "driver-containers.md"
NVIDIA = "nvcr.io/nvidia/driver"
ASCEND_MODULE = "drv_pcie_host"
APART = "/run/stand-ins"
VERSIONS = ("2.0.1", "2.0.2")

_NVIDIA_DRIVER = """\
#!/bin/sh
# As NVIDIA's container is known to do: unloads what is loaded, loads, and unloads at SIGTERM if nobody uses the device.
gone() { [ ! -d "$SYS_ROOT/module/nvidia" ] || rmmod nvidia; }
root=/run/nvidia/driver
finish() { gone && umount --lazy $root; exit 0; }
trap finish TERM
gone || exit 1
mkdir -p $root
! mountpoint -q $root || umount --lazy $root
mount --bind /opt/driver $root
modprobe -d $root nvidia || exit 1
while :; do sleep 3600 & wait $!; done
"""
_NVIDIA_SMI = '#!/bin/sh\n[ -d "$SYS_ROOT/module/nvidia" ]\n'


def archive() -> list[Path]:
    """The built images of both vendors in two versions, and one that does what NVIDIA's does. Raises TierError."""
    image = builder.built()

    def make(fresh: Path) -> None:
        with tempfile.TemporaryDirectory(dir=fresh) as made:
            folder = Path(made)
            write(fresh / "vendors.tar", [*_rebellions(image, folder), *_ascend(image, folder)])

    sources = (Path(__file__), Path(driver_packages.__file__), *images.SOURCES)
    name = f"{image.state}-{cache.key(images.KERNEL, repr(images.stand_ins()), *sources)}"
    return [cache.entry("vendor-images", name, make) / "vendors.tar"]


def _built(kind: str, image: builder.Image, folder: Path, package: Path) -> Packed:
    """The image of images/`kind`, with the package in it."""
    made = builder.build_driver_container(kind, f"localhost/{kind}:node", image, package=package)
    file = folder / f"{kind}.tar"
    builder.checked(["buildah", "push", "--quiet", made.name, f"docker-archive:{file}"], builder.BUILD_TIMEOUT_S)
    builder.remove(made)
    return read(file, kind, folder)


def _rebellions(image: builder.Image, folder: Path) -> list[Packed]:
    """The second is the first with another tree in its place; NVIDIA's has a tree of its own and its own program."""
    package = folder / "rebellions"
    write_deb(package, "rebellions", VERSIONS[0], images.driver_tree(VERSIONS[0]))
    plain = _built("rebellions-driver", image, folder, package)
    packed = []
    for version in VERSIONS:
        name = f"{images.REPOSITORY}/rebellions-driver:{version}"
        tree = _tree(images.driver_tree(version)) if version != VERSIONS[0] else {}
        packed.append(plain.on_top(name, folder, {**images.stand_ins(), **tree}, _environment("/run/rbln/.stand-ins")))
        vendor = _tree(images.driver_tree(version, "nvidia"))
        programs = {"usr/bin/nvidia-driver": _NVIDIA_DRIVER.encode(), "usr/bin/nvidia-smi": _NVIDIA_SMI.encode()}
        files = {**images.stand_ins(), **vendor, **programs}
        packed.append(plain.on_top(f"{NVIDIA}:{version}-ubuntu22.04", folder, files, _environment(APART)))
    return packed


def _ascend(image: builder.Image, folder: Path) -> list[Packed]:
    package = folder / "ascend"
    package.mkdir()
    runs = {version: run_file(images.driver_tree(version, ASCEND_MODULE)) for version in VERSIONS}
    (package / "npu-driver.run").write_bytes(runs[VERSIONS[0]])
    plain = _built("ascend-driver", image, folder, package)
    packed = []
    for version, content in runs.items():
        name = f"{images.REPOSITORY}/ascend-driver:{version}"
        later = {"opt/package/npu-driver.run": content} if version != VERSIONS[0] else {}
        packed.append(plain.on_top(name, folder, {**images.stand_ins(), **later}, _environment(APART)))
    return packed


def _tree(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"opt/driver/{path}": content for path, content in files.items()}


def _environment(stand_ins: str) -> tuple[str, ...]:
    """A container's own /sys is a fresh one, and the host's is not there."""
    return (f"SYS_ROOT={stand_ins}/sys",)


class ExampleClone(Clone):
    """A clone in which the page's examples are used.

    What is not public has the versions of the stand-ins: `2.0.1` first.
    """

    def __init__(self, machine: Machine, folder: Path) -> None:
        super().__init__(machine, folder)
        for example in ("nvidia-driver", "ascend-driver"):
            self._reach_stand_ins(example)
        self.replace("nvidia-driver", "550.90.07", VERSIONS[0])
        self.replace("ascend-driver", "25.5.0", VERSIONS[0])

    def _reach_stand_ins(self, example: str) -> None:
        """Pods without the host's /run/rbln get what is in it for kmod's stand-ins; all else is deploy/'s."""
        path = self.folder / "deploy/examples" / example
        body = yaml.safe_load((path / "daemonset.yaml").read_text())
        mounts = [{"name": "stand-ins", "mountPath": APART}]
        pod = {
            "initContainers": [{"name": "k8s-driver-manager", "volumeMounts": mounts}],
            "containers": [{"name": "driver", "volumeMounts": mounts}],
            "volumes": [{"name": "stand-ins", "hostPath": {"path": "/run/rbln/.stand-ins"}}],
        }
        patch = {key: body[key] for key in ("apiVersion", "kind", "metadata")} | {"spec": {"template": {"spec": pod}}}
        (path / "stand-ins.yaml").write_text(yaml.safe_dump(patch))
        with (path / "kustomization.yaml").open("a") as file:
            file.write("  - path: stand-ins.yaml\n")

    def replace(self, example: str, old: str, new: str) -> None:
        for name in ("daemonset.yaml", "kustomization.yaml"):
            path = self.folder / "deploy/examples" / example / name
            path.write_text(path.read_text().replace(old, new))


def lines_of(section: str) -> list[str]:
    return [line for line in commands_below(PAGE, section) if line.startswith("kubectl")]


class Vendor:
    """One vendor's driver on the node: what its pods, its modules and its files show."""

    def __init__(self, machine: Machine, namespace: str, module: str) -> None:
        self.machine, self.module = machine, module
        self.namespace = namespace
        self.root = machine.namespaces.root
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    @property
    def folder(self) -> Path:
        """The module's, in the node's /sys."""
        return self.machine.place.modules(self.root) / self.module

    def loaded(self) -> str:
        """The version that is loaded, "" without one."""
        path = self.folder / "version"
        return path.read_text().strip() if path.exists() else ""

    def pods(self) -> list[Json]:
        """Those of the driver that are not on their way out; what hinders only by its object is removed."""
        remove_ended(self.machine, self.namespace)
        found = self.machine.api.list(self._pods, labelSelector="app.kubernetes.io/name=driver")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def pod(self) -> str:
        """The name of the only one."""
        return str(wait_until(self.pods, "a driver pod")[0]["metadata"]["name"])

    def mounts(self, path: str) -> int:
        lines = self.machine.namespaces.checked("cat", "/proc/1/mountinfo").splitlines()
        return sum(line.split(" ")[4] == path for line in lines)

    def wait(self, check: Callable[[], object], what: str) -> None:
        try:
            wait_until(check, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from error

    def output(self) -> str:
        """The output of driver-manager in the pods that are there."""
        logs = sorted(self.root.glob(f"var/log/pods/{self.namespace}_*/k8s-driver-manager/*.log"))
        return "\n".join(log.read_text(errors="replace") for log in logs)

    def story(self) -> str:
        """What there is to see, for a test that failed."""
        lines = [self.machine.kubectl("get", "pods,events", "--all-namespaces").stdout]
        for log in sorted(self.root.glob("var/log/pods/*driver*/*/*.log")):
            lines += [str(log), *log.read_text(errors="replace").splitlines()[-15:]]
        return "\n".join(lines)
