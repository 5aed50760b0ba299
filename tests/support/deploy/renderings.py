"""What is rendered of `deploy/` in several checks, and the kubectl that renders it too. Must not import the product."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from scripts.releasing.kustomize import NAMESPACES, OVERLAYS, POLICIES, REBOOTERS, ROLLOUTS, Json
from tests.support.assets import tool
from tests.support.tiers import TierError

ROUND = ("openshift", "resource-quota", "network-policy")
"""What clusters ask for around the pods; of use to every overlay."""

SETS = [
    *((overlay, ()) for overlay in OVERLAYS),
    ("rebellions", ("safe-load", "recovery", "metrics", *ROUND)),
    ("nvidia", ("safe-load", "recovery", "metrics", *ROUND)),
    *(
        (one, ("rebooter-eviction", "clients", "node-condition", "metrics", "openshift-rebooter", *ROUND))
        for one in ("amd", "ascend")
    ),
    *((one, ("recovery", "node-condition", "metrics", *ROUND)) for one in ("furiosa", "gaudi", "tenstorrent")),
]
FLEETS: list[tuple[str, tuple[str, ...]]] = [
    *((name, ()) for name in ROLLOUTS),
    *((name, ("openshift-rollout",)) for name in ROLLOUTS),
    *((name, ()) for name in REBOOTERS),
]
SPACES: list[tuple[str, tuple[str, ...]]] = [(name, ()) for name in (*NAMESPACES, *POLICIES)]


def shown(part: object) -> str:
    """A part of a case, in its name."""
    return "+".join(part) if isinstance(part, tuple) else str(part)


def kubectl() -> str:
    """A kubectl whose kustomize knows components; skips where there is none."""
    try:
        return str(tool("kubectl"))
    except TierError as error:
        found = shutil.which("kubectl")
        if found is None:
            pytest.skip(f"no kubectl to compare with: {error}")
    done = subprocess.run([found, "version", "--client", "-o", "json"], capture_output=True, text=True, check=False)
    version = json.loads(done.stdout or "{}").get("kustomizeVersion", "v0")
    if int(version.removeprefix("v").split(".")[0]) < 5:
        pytest.skip(f"kubectl has kustomize {version}, which knows no components")
    return found


def kustomized(folder: Path) -> list[Json]:
    """What kubectl makes of the kustomization in `folder`. AssertionError where it fails or warns."""
    argv = [kubectl(), "kustomize", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, ""), "kustomize refuses, or warns of something deprecated"
    return list(yaml.safe_load_all(done.stdout))
