"""What every command about rollouts needs of its options: the namespace, and a profile that serves a rollout."""

from __future__ import annotations

import contextlib
import os
import re

from driver_manager import settings
from driver_manager.adapters.kube import in_pod
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.profile import Profile
from driver_manager.domain.setting import Values


def namespace_of(values: Values, profile: Profile) -> str:
    """The namespace: as told, else that of the way to the cluster, else the profile's.

    Raises ConfigError for what can be none.
    """
    told = values[settings.ROLLOUT_NAMESPACE] or _namespace_there(values[settings.KUBECONFIG]) or profile.namespace
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", told):
        raise ConfigError(f"{told!r} is not the name of a namespace", f"Fix {settings.ROLLOUT_NAMESPACE.flag}.")
    return told


def _namespace_there(kubeconfig: str) -> str:
    """The pod's own namespace, or that of the kubeconfig's context: of whichever is used; "" where it names none."""
    if not kubeconfig and in_pod.is_in_pod(in_pod.ACCOUNT, os.environ):
        with contextlib.suppress(OSError, ValueError):
            return (in_pod.ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
        return ""
    from driver_manager.adapters.kube import library  # noqa: PLC0415  # in a pod, nothing of it is needed

    return library.namespace_of(kubeconfig or None)


def refuse_without_state(profile: Profile) -> None:
    """Raise ConfigError for a profile whose nodes cannot show how far their upgrade is."""
    if not profile.keys.upgrade_state:
        raise ConfigError(
            f"profile {profile.name} has no label for the state of a node's upgrade",
            "Add keys.upgrade_state to it; the shipped profiles show it.",
        )
