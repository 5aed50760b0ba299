"""deploy/ renders as kubectl renders it, with any set of components that the other checks use."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from scripts.releasing.kustomize import DEPLOY, EXAMPLES, render, render_example
from tests.support.deploy.meaning import canonical
from tests.support.deploy.renderings import FLEETS, SETS, SPACES, kubectl

pytestmark = [pytest.mark.shares(3), pytest.mark.submission, pytest.mark.reads("deploy", tools=["kubectl"])]


@pytest.mark.parametrize(
    ("overlay", "further"), SETS + FLEETS + SPACES, ids=lambda part: "+".join(part) if part else ""
)
def test_what_the_tests_render_is_what_kubectl_renders(overlay: str, further: tuple[str, ...], tmp_path: Path) -> None:
    tool = kubectl()
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    folder = tmp_path / "deploy/overlays" / overlay
    file = folder / "kustomization.yaml"
    body = yaml.safe_load(file.read_text())
    added = (os.path.relpath(DEPLOY / "components" / name, DEPLOY / "overlays" / overlay) for name in further)
    body["components"] = [*body["components"], *added]
    file.write_text(yaml.safe_dump(body))
    done = subprocess.run([tool, "kustomize", str(folder)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "kustomize warns of something deprecated"
    assert canonical(list(yaml.safe_load_all(done.stdout))) == canonical(render(overlay, *further))


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_the_tests_render_of_an_example_is_what_kubectl_renders(example: str) -> None:
    argv = [kubectl(), "kustomize", str(DEPLOY / "examples" / example)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert canonical(list(yaml.safe_load_all(done.stdout))) == canonical(render_example(example))
