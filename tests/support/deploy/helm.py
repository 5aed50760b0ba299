"""Owns Helm in tests: its own library, fetched by its lock into build/helm. Must not import the product."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from scripts.releasing.chart import CHART
from scripts.releasing.kustomize import Json
from tests.support.tiers import skip_or_fail

CHECKOUT = Path(__file__).resolve().parents[3]
LOCK = CHECKOUT / "requirements/helm.lock"
FOLDER = CHECKOUT / "build/helm"
FETCH_TIMEOUT_S = 600.0


class HelmError(Exception):
    """Helm refused; the message is its own."""


class Helm:
    """A process that has Helm's library."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def render(self, values: Json, namespace: str, chart: Path = CHART) -> list[Json]:
        """The objects of `helm template --include-crds`. Raises HelmError."""
        arguments = {"chart": str(chart), "values": values, "name": "driver-manager", "namespace": namespace}
        texts = self._ask("render", arguments)
        return [one for text in texts for one in yaml.load_all(text, _LOADER) if one]

    def lint(self, values: Json) -> list[str]:
        return list(self._ask("lint", {"chart": str(CHART), "values": values}))

    def act(self, kind: str, values: Json, chart: Path, kubeconfig: Path, namespace: str) -> None:
        """`helm install`, `upgrade` or `uninstall` of the release `driver-manager`. Raises HelmError."""
        arguments = {"kind": kind, "chart": str(chart), "values": values, "name": "driver-manager"}
        self._ask("act", arguments | {"kubeconfig": str(kubeconfig), "namespace": namespace})

    def _ask(self, function: str, arguments: Json) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"function": function, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "Helm's process ended"
        answer = json.loads(line)
        if "error" in answer:
            raise HelmError(answer["error"])
        return answer["result"]


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@contextmanager
def started() -> Iterator[Helm]:
    """Helm; skips where it cannot be had, or fails where every tier is required."""
    if lacking := _fetched():
        skip_or_fail(lacking)
    program = [sys.executable, str(Path(__file__).with_name("helm_process.py"))]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(FOLDER), "HOME": str(FOLDER)}
    process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    try:
        yield Helm(process)
    finally:
        process.communicate()


def _fetched() -> str:
    """Why the library is not in FOLDER, "" where it is. What the lock names is fetched once."""
    FOLDER.parent.mkdir(exist_ok=True)
    with (FOLDER.parent / "helm.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        stamp = FOLDER / "stamp"
        if stamp.is_file() and stamp.read_text() == LOCK.read_text():
            return ""
        shutil.rmtree(FOLDER, ignore_errors=True)
        words = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
        words += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--target", str(FOLDER), "-r", str(LOCK)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
        if done.returncode:
            return f"Helm's library could not be fetched: {done.stderr.strip().splitlines()[-1:]}"
        # The same library three times; the loader takes this name.
        for twin in FOLDER.glob("helm_python/lib/libhelm_c.so.*"):
            twin.unlink()
        stamp.write_text(LOCK.read_text())
    return ""
