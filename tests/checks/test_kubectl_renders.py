"""deploy/ renders as kubectl renders it, and two vendors' overlays share no object, whatever components they have."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path

import pytest
import yaml

from scripts.releasing.chart import offered
from scripts.releasing.kustomize import DEPLOY, EXAMPLES, OVERLAYS, REBOOTERS, Json, only, render, render_example
from tests.support.deploy.meaning import canonical, is_selected, pods_of, selectors
from tests.support.deploy.renderings import FLEETS, SETS, SPACES, kustomized, shown

MEANT_TO_BE_SHARED = ("Namespace", "CustomResourceDefinition")
FOLDERS = ("rollout", "admission-policy")
"""Of an overlay, to be applied beside it."""


def names(objects: Iterable[Json]) -> set[tuple[str, str]]:
    """Kind and name of what must not be shared, in whatever namespace."""
    return {(one["kind"], one["metadata"]["name"]) for one in objects if one["kind"] not in MEANT_TO_BE_SHARED}


def assert_apart(rendered: dict[str, list[Json]]) -> None:
    """No two vendors share a name or select each other's pods, and no binding refers to what is not a vendor's."""
    for one, other in permutations(rendered, 2):
        assert names(rendered[one]) & names(rendered[other]) == set(), (one, other)
        pods = [*pods_of(rendered[other])]
        assert len(pods) > 1
        for chosen in (each for part in rendered[one] for each in selectors(part)):
            assert not [labels for labels in pods if is_selected(chosen, labels)], (chosen, other)
    for objects in rendered.values():
        bindings = [one for one in objects if "roleRef" in one]
        referred = {(each["kind"], each["name"]) for one in bindings for each in (one["roleRef"], *one["subjects"])}
        assert [name for _, name in referred - names(objects) if not name.startswith("system:")] == []


def missing(overlay: str, folders: tuple[str, ...] = FOLDERS) -> list[str]:
    """The components that fit the overlay, and that neither it nor one of `folders` has, in their order."""
    return [name for name, has in offered()[overlay].items() if not has and name not in folders]


def on_top(overlay: str, components: Iterable[str], folder: Path) -> list[Json]:
    """What kubectl makes of a user's overlay in `folder`, beside deploy/, with the vendor's and these components."""
    shutil.copytree(DEPLOY, folder / "deploy", dirs_exist_ok=True)
    body: Json = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    body["resources"] = [f"../deploy/overlays/{name}" for name in overlay.split()]
    body["components"] = [f"../deploy/components/{name}" for name in components]
    mine = folder / overlay.split(maxsplit=1)[0].replace("/", "-")
    mine.mkdir()
    (mine / "kustomization.yaml").write_text(yaml.safe_dump(body))
    return kustomized(mine)


def test_overlays_with_all_components_share_no_name() -> None:
    rendered = {}
    for overlay in OVERLAYS:
        alone = render(overlay, *(name for name in missing(overlay) if name != "openshift-rollout"))
        beside = [*render(f"{overlay}/rollout", "openshift-rollout"), *render(f"{overlay}/admission-policy")]
        rendered[overlay] = [*alone, *beside]
    assert_apart(rendered)


@pytest.mark.submission
@pytest.mark.shares(3)
def test_overlays_of_ones_own_with_all_components_share_no_name(tmp_path: Path) -> None:
    rendered = {}
    for overlay in OVERLAYS:
        namespace = only(render(f"{overlay}/namespace"), "Namespace")["metadata"]["name"]
        folders = (*FOLDERS, *(["rebooter"] if f"{overlay}/rebooter" in REBOOTERS else []))
        beside = " ".join((overlay, *(f"{overlay}/{one}" for one in folders)))
        rendered[overlay] = on_top(beside, missing(overlay, folders), tmp_path)
        assert [name for _, name in names(rendered[overlay]) if not name.startswith(f"{overlay}-")] == []
        spaces = {one["metadata"].get("namespace", namespace) for one in rendered[overlay]}
        assert spaces <= {namespace, "default"}
    assert_apart(rendered)


@pytest.mark.shares(3)
@pytest.mark.submission
@pytest.mark.parametrize(("overlay", "further"), SETS + FLEETS + SPACES, ids=shown)
def test_what_the_tests_render_is_what_kubectl_renders(overlay: str, further: tuple[str, ...], tmp_path: Path) -> None:
    vendor = overlay.partition("/")[0]
    # A component takes the namespace from the account of the vendor's overlay, so that one comes with it.
    beside = f" {vendor}" if further and vendor != overlay else ""
    wanted = [*render(overlay, *further), *(render(vendor) if beside else [])]
    assert canonical(on_top(overlay + beside, further, tmp_path)) == canonical(wanted)


@pytest.mark.shares(3)
@pytest.mark.submission
@pytest.mark.parametrize("example", EXAMPLES)
def test_what_the_tests_render_of_an_example_is_what_kubectl_renders(example: str) -> None:
    assert canonical(kustomized(DEPLOY / "examples" / example)) == canonical(render_example(example))
