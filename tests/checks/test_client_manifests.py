"""deploy/components/clients: one selector for both containers, its rights, and no consent to evict anybody's pods."""

from __future__ import annotations

import pytest

from driver_manager.domain import settings
from scripts.releasing.kustomize import OVERLAYS, Json, only, render


def added(overlay: str, container: str) -> list[Json]:
    """The environment that the component brings to this container."""
    found = []
    for objects in (render(overlay), render(overlay, "clients")):
        spec = only(objects, "DaemonSet", f"{overlay}-driver")["spec"]["template"]["spec"]
        (own,) = [one for one in (*spec["initContainers"], *spec["containers"]) if one["name"] == container]
        found.append(own["env"])
    return [one for one in found[1] if one not in found[0]]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_run_and_the_watch_read_one_selector_and_no_consent_is_given(overlay: str) -> None:
    source = {"fieldRef": {"fieldPath": "metadata.annotations['client-selector']"}}
    selector = {"name": settings.CLIENT_SELECTOR.env, "valueFrom": source}
    assert added(overlay, "health-watch") == [selector]
    assert added(overlay, "k8s-driver-manager") == [selector, {"name": settings.RESTART_CLIENTS.env, "value": "false"}]
    template = only(render(overlay, "clients"), "DaemonSet", f"{overlay}-driver")["spec"]["template"]
    assert template["metadata"]["annotations"]["client-selector"] == ""


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_one_role_is_all_that_it_brings_and_the_driver_pods_have_it(overlay: str) -> None:
    before = {(one["kind"], one["metadata"]["name"]) for one in render(overlay)}
    objects = render(overlay, "clients")
    new = [one for one in objects if (one["kind"], one["metadata"]["name"]) not in before]
    assert {(one["kind"], one["metadata"]["name"]) for one in new} == {
        ("ClusterRole", f"{overlay}-driver-clients"),
        ("ClusterRoleBinding", f"{overlay}-driver-clients"),
    }
    (subject,) = only(new, "ClusterRoleBinding")["subjects"]
    account = only(objects, "DaemonSet", f"{overlay}-driver")["spec"]["template"]["spec"]["serviceAccountName"]
    assert subject["name"] == account
