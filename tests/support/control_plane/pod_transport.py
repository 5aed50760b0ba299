"""The product's connection to the API server from a pod, for adapters in the test's process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from driver_manager.adapters.kube import transport as in_pod
from driver_manager.adapters.kube.transport import InPod
from tests.support.control_plane.servers import ControlPlane


def pod_transport(plane: ControlPlane, token: str, server: str | None = None) -> InPod:
    """As a pod with `token` has it; `server` where it must take another way."""
    return of_environment(plane.service_account(token, server))


def enter_pod(environ: Mapping[str, str]) -> None:
    """As `pod_site` has it, for a process whose interpreter runs already."""
    in_pod.SERVICE_ACCOUNT = Path(environ.get("TEST_SERVICE_ACCOUNT", in_pod.SERVICE_ACCOUNT))


def of_environment(environ: dict[str, str]) -> InPod:
    return InPod(Path(environ["TEST_SERVICE_ACCOUNT"]), environ)
