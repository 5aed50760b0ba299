"""The provenance of a release: an in-toto statement v1 with the predicate SLSA provenance v1.

Forms: in-toto/attestation spec/v1, slsa.dev/spec/v1.0/provenance. The same commit, bases and files give the same bytes.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]

STATEMENT = "https://in-toto.io/Statement/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
BILL = "https://cyclonedx.org/bom"
BUILD_TYPE = "pkg:generic/driver-manager#scripts/release"
"""The build type, and the builder's id unless the releaser gives one: the script that describes the build."""


def statement(predicate_type: str, predicate: Json, subjects: Mapping[str, str]) -> Json:
    """An in-toto statement; `subjects` has the SHA-256 of each file by name."""
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(subjects.items())],
        "predicateType": predicate_type,
        "predicate": predicate,
    }


def provenance(checkout: Path, version: str, epoch_s: int, bases: Mapping[str, tuple[str, str]], builder: str) -> Json:
    """The predicate; `bases` has name and digest of the base image by architecture. Raises OSError, CalledProcessError.

    Inputs: the commit, each lock file, the base images.
    """
    source: Json = {
        "name": "driver-manager",
        "digest": {"gitCommit": _git(checkout, "HEAD"), "gitTree": _git(checkout, "HEAD^{tree}")},
    }
    if _run_git(checkout, "status", "--porcelain"):
        source["annotations"] = {"uncommittedChanges": True}
    locks = sorted((checkout / "requirements").iterdir())
    dependencies = [
        source,
        *({"name": f"requirements/{lock.name}", "digest": {"sha256": sha256(lock)}} for lock in locks),
    ]
    for architecture, (name, digest) in sorted(bases.items()):
        kind, _, value = digest.partition(":")
        dependencies.append({"name": name, "digest": {kind: value}, "annotations": {"architecture": architecture}})
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"version": version, "sourceDateEpoch": epoch_s},
            "resolvedDependencies": dependencies,
        },
        "runDetails": {"builder": {"id": builder}},
    }


def sha256(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sums(paths: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of each file by its name."""
    return {path.name: sha256(path) for path in paths}


def _git(checkout: Path, revision: str) -> str:
    return _run_git(checkout, "rev-parse", revision)


def _run_git(checkout: Path, *words: str) -> str:
    argv = ["git", "-C", str(checkout), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
