"""Owns one whole test node: control plane, containerd and kubelet in one process's namespaces, and what it needs.

As a program: `python -m tests.support.node.machine --check` says what the machine lacks, `--prepare` makes the images.
Must not import the product.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import assets
from tests.support.image import builder
from tests.support.node import containers, control_plane, images
from tests.support.node.access import Access
from tests.support.node.containers import Containers
from tests.support.node.control_plane import ControlPlane
from tests.support.node.kubelet import Kubelet
from tests.support.node.namespaces import Namespaces
from tests.support.node.place import HERE, Place
from tests.support.tiers import TierError, answer

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
KUBELET_VARIABLE = assets.KUBELET.variable

PACKAGE_OF = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "iptables": "iptables",
    "kubectl": "kubernetes-client",
    "busybox": "busybox-static",
    "gcc-12": "gcc-12",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "openssl": "openssl",
}


def own_archives() -> list[Path]:
    """The images of a node on this machine."""
    return [*images.tiny_archives(), images.driver_archive(images.with_stand_ins())]


def own_plane(namespaces: Namespaces) -> ControlPlane:
    """The control plane of a node that is its own master."""
    return ControlPlane(namespaces, Path(os.environ[ASSETS_VARIABLE]))


class Machine:
    """A node that is Ready, with the images of `archives`, for as long as the context lasts.

    `access` is the way to its API server, which `plane` makes.
    """

    def __init__(
        self,
        place: Place = HERE,
        archives: Callable[[], list[Path]] = own_archives,
        plane: Callable[[Namespaces], AbstractContextManager[Access]] = own_plane,
    ) -> None:
        self.place = place
        self._archives = archives
        self._plane = plane

    def __enter__(self) -> Self:
        with ThreadPoolExecutor() as threads, contextlib.ExitStack() as stack:
            archives = threads.submit(self._archives)
            self.namespaces = stack.enter_context(Namespaces(self.place))
            self.containers = Containers(self.namespaces)
            self.containers.start()
            loading = threads.submit(lambda: self.containers.load(archives.result()))
            self.access = stack.enter_context(self._plane(self.namespaces))
            self.api = self.access.api
            self.kubelet = Kubelet(self.namespaces, kubelet_program(), self.access.kubeconfig("kubelet"), self.api)
            self.kubelet.start()
            loading.result()
            self._admin = self.access.kubeconfig("admin")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, at)

    @property
    def plane(self) -> ControlPlane:
        """The control plane, which only a node of its own can be asked for."""
        assert isinstance(self.access, ControlPlane)
        return self.access

    def kubectl(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """kubectl on the node, as an administrator."""
        return self.namespaces.run("kubectl", f"--kubeconfig={self._admin}", *words, given=given)


def kubelet_program() -> Path:
    """The kubelet of the tests. Raises TierError where there is none."""
    return assets.kubelet() / "kubelet"


def missing() -> list[str]:
    """What the tier lacks on this machine, one readable line each; empty where it can run."""
    lines = [f"{one} (Debian package {name})" for one, name in PACKAGE_OF.items() if shutil.which(one) is None]
    if not containers.is_there():
        lines.append(f"network plugins in {containers.CNI_PROGRAMS} (Debian package containernetworking-plugins)")
    try:
        kubelet_program()
    except TierError as error:
        lines.append(str(error))
    plane = os.environ.get(ASSETS_VARIABLE)
    absent = [name for name in control_plane.BINARIES if not os.access(Path(plane or "/absent", name), os.X_OK)]
    if absent:
        lines.append(f"{', '.join(absent)} in {ASSETS_VARIABLE}" if plane else f"{ASSETS_VARIABLE} is not set")
    return [*lines, *builder.missing()]


if __name__ == "__main__":
    sys.exit(answer("node", missing(), lambda: images.driver_archive(images.with_stand_ins()).name))
