"""Two vendors' overlays in one cluster: neither has an object of the other's, whatever components they have."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from scripts.releasing.kustomize import DEPLOY, OVERLAYS, Json, only, render
from tests.support.deploy.renderings import kubectl

MEANT_TO_BE_SHARED = ("Namespace", "CustomResourceDefinition")
FOLDERS = ("rollout", "admission-policy")
"""Of an overlay, to be applied beside it."""

NOT_LISTED = {"namespace", *FOLDERS}
"""Components that come with a folder of the overlay."""

NEEDED = ("rebooter", "openshift")
"""Components that others need come before them."""


def names(objects: Iterable[Json]) -> set[tuple[str, str]]:
    """Kind and name of what must not be shared, in whatever namespace."""
    return {(one["kind"], one["metadata"]["name"]) for one in objects if one["kind"] not in MEANT_TO_BE_SHARED}


def shared(rendered: dict[str, list[Json]]) -> dict[tuple[str, str], set[tuple[str, str]]]:
    """What each pair of vendors has in common."""
    pairs = {pair: names(rendered[pair[0]]) & names(rendered[pair[1]]) for pair in combinations(sorted(rendered), 2)}
    return {pair: found for pair, found in pairs.items() if found}


def dangling(objects: list[Json]) -> list[str]:
    """Bindings of a role or to an account that is not among the objects."""
    known = names(objects)
    found = []
    for one in (one for one in objects if "roleRef" in one):
        referred = [one["roleRef"], *one["subjects"]]
        found += [
            f"{one['metadata']['name']}: {each['kind']} {each['name']}"
            for each in referred
            if (each["kind"], each["name"]) not in known and not each["name"].startswith("system:")
        ]
    return found


def missing(overlay: str) -> list[str]:
    """The components that the overlay lacks, in the order in which they are listed."""
    file = DEPLOY / "overlays" / overlay / "kustomization.yaml"
    has = {Path(one).name for one in yaml.safe_load(file.read_text())["components"]}
    every = {path.name for path in (DEPLOY / "components").iterdir()}
    return sorted(every - has - NOT_LISTED, key=lambda name: (name not in NEEDED, name))


def test_overlays_with_all_components_share_no_name() -> None:
    rendered = {
        overlay: [
            *render(overlay, *(name for name in missing(overlay) if name != "openshift-rollout")),
            *render(f"{overlay}/rollout", "openshift-rollout"),
            *render(f"{overlay}/admission-policy"),
        ]
        for overlay in OVERLAYS
    }
    assert shared(rendered) == {}
    assert {overlay: dangling(objects) for overlay, objects in rendered.items() if dangling(objects)} == {}


@pytest.mark.submission
@pytest.mark.shares(3)
def test_overlays_of_ones_own_with_all_components_share_no_name(tmp_path: Path) -> None:
    tool = kubectl()
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    rendered = {}
    for overlay in OVERLAYS:
        namespace = only(render(f"{overlay}/namespace"), "Namespace")["metadata"]["name"]
        transformer = yaml.safe_load((DEPLOY / "overlays" / overlay / "default-namespace.yaml").read_text())
        body = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [f"../deploy/overlays/{overlay}{folder}" for folder in ("", *(f"/{one}" for one in FOLDERS))],
            "components": [f"../deploy/components/{name}" for name in missing(overlay)],
            "transformers": [yaml.safe_dump(transformer)],
        }
        assert transformer["metadata"]["namespace"] == namespace
        (tmp_path / overlay).mkdir()
        (tmp_path / overlay / "kustomization.yaml").write_text(yaml.safe_dump(body))
        argv = [tool, "kustomize", str(tmp_path / overlay)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
        assert (done.returncode, done.stderr) == (0, ""), overlay
        rendered[overlay] = list(yaml.safe_load_all(done.stdout))
    assert shared(rendered) == {}
    assert {overlay: dangling(objects) for overlay, objects in rendered.items() if dangling(objects)} == {}
    for overlay, objects in rendered.items():
        assert [name for _, name in names(objects) if not name.startswith(f"{overlay}-")] == []
