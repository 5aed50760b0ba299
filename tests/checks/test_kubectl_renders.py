"""deploy/ renders as kubectl renders it, and two vendors' overlays share no object, whatever components they have."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from scripts.releasing.kustomize import DEPLOY, EXAMPLES, OVERLAYS, Json, only, render, render_example
from tests.support.deploy.meaning import canonical
from tests.support.deploy.renderings import FLEETS, SETS, SPACES, kustomized

MEANT_TO_BE_SHARED = ("Namespace", "CustomResourceDefinition")
FOLDERS = ("rollout", "admission-policy")
"""Of an overlay, to be applied beside it."""

NEEDED = ("rebooter", "openshift")
"""Components that others need come before them."""


def names(objects: Iterable[Json]) -> set[tuple[str, str]]:
    """Kind and name of what must not be shared, in whatever namespace."""
    return {(one["kind"], one["metadata"]["name"]) for one in objects if one["kind"] not in MEANT_TO_BE_SHARED}


def assert_apart(rendered: dict[str, list[Json]]) -> None:
    """No two vendors share a name, and no binding refers to what is not among a vendor's objects."""
    for one, other in combinations(rendered, 2):
        assert names(rendered[one]) & names(rendered[other]) == set(), (one, other)
    for objects in rendered.values():
        bindings = [one for one in objects if "roleRef" in one]
        referred = {(each["kind"], each["name"]) for one in bindings for each in (one["roleRef"], *one["subjects"])}
        assert [name for _, name in referred - names(objects) if not name.startswith("system:")] == []


def missing(overlay: str) -> list[str]:
    """The components that the overlay lacks and that are not in a folder of it, in the order in which they go."""
    every = {path.name for path in (DEPLOY / "components").iterdir()} - {"namespace", *FOLDERS}
    body = yaml.safe_load((DEPLOY / "overlays" / overlay / "kustomization.yaml").read_text())
    lacking = every - {Path(one).name for one in body["components"]}
    return sorted(lacking, key=lambda name: (name not in NEEDED, name))


def test_overlays_with_all_components_share_no_name() -> None:
    assert_apart(
        {
            overlay: [
                *render(overlay, *(name for name in missing(overlay) if name != "openshift-rollout")),
                *render(f"{overlay}/rollout", "openshift-rollout"),
                *render(f"{overlay}/admission-policy"),
            ]
            for overlay in OVERLAYS
        }
    )


@pytest.mark.submission
@pytest.mark.shares(3)
def test_overlays_of_ones_own_with_all_components_share_no_name(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    rendered = {}
    for overlay in OVERLAYS:
        transformer = yaml.safe_load((DEPLOY / "overlays" / overlay / "default-namespace.yaml").read_text())
        namespace = only(render(f"{overlay}/namespace"), "Namespace")["metadata"]["name"]
        assert transformer["metadata"]["namespace"] == namespace
        body = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [f"../deploy/overlays/{overlay}{folder}" for folder in ("", *(f"/{one}" for one in FOLDERS))],
            "components": [f"../deploy/components/{name}" for name in missing(overlay)],
            "transformers": [yaml.safe_dump(transformer)],
        }
        (tmp_path / overlay).mkdir()
        (tmp_path / overlay / "kustomization.yaml").write_text(yaml.safe_dump(body))
        rendered[overlay] = kustomized(tmp_path / overlay)
        assert [name for _, name in names(rendered[overlay]) if not name.startswith(f"{overlay}-")] == []
    assert_apart(rendered)


@pytest.mark.shares(3)
@pytest.mark.submission
@pytest.mark.parametrize(
    ("overlay", "further"), SETS + FLEETS + SPACES, ids=lambda part: "+".join(part) if part else ""
)
def test_what_the_tests_render_is_what_kubectl_renders(overlay: str, further: tuple[str, ...], tmp_path: Path) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    folder = tmp_path / "deploy/overlays" / overlay
    body = yaml.safe_load((folder / "kustomization.yaml").read_text())
    added = (os.path.relpath(DEPLOY / "components" / name, DEPLOY / "overlays" / overlay) for name in further)
    body["components"] = [*body["components"], *added]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(body))
    assert canonical(kustomized(folder)) == canonical(render(overlay, *further))


@pytest.mark.shares(3)
@pytest.mark.submission
@pytest.mark.parametrize("example", EXAMPLES)
def test_what_the_tests_render_of_an_example_is_what_kubectl_renders(example: str) -> None:
    assert canonical(kustomized(DEPLOY / "examples" / example)) == canonical(render_example(example))
