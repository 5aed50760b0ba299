"""Helm's library in a process of its own: its runtime has threads and signal handlers, and tests fork.

As a program: each line of standard input is a request in JSON (function and arguments), each line of standard output
its answer: a result, or an error with its message. Imports nothing of this repository: only the library is on its path.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import helm_python as helm  # type: ignore[import-not-found]  # on the path of this program only


def render(chart: str, values: dict[str, Any], name: str, namespace: str) -> list[str]:
    """What `helm template --include-crds` prints, a text for each file."""
    with helm.Chart.load(chart) as loaded:
        rendered = loaded.render(values, name=name, namespace=namespace)
        objects = [text for path, text in rendered.items() if not path.endswith("NOTES.txt")]
        return [*(one["data"] for one in loaded.crds), *objects]


def lint(chart: str, values: dict[str, Any]) -> list[str]:
    """What `helm lint --strict` has against it: warnings and errors."""
    report = helm.lint(chart, values, strict=True)
    return [*report["errors"], *(str(one["error"]) for one in report["messages"] if one["severity"] > 1)]


def act(kind: str, chart: str, values: dict[str, Any], name: str, kubeconfig: str, namespace: str) -> None:
    """`helm install`, `upgrade` or `uninstall` on a cluster."""
    with helm.Config(kubeconfig_path=kubeconfig, namespace=namespace) as config:
        if kind == "uninstall":
            config.uninstall(name)
        else:
            getattr(config, kind)(chart, name, values, namespace=namespace)


ANSWERS = {"render": render, "lint": lint, "act": act}


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": ANSWERS[request["function"]](**request["arguments"])}  # type: ignore[operator]
        except helm.HelmError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
