"""The short-lived process of `health-watch` that saves what can be seen of a wedge: one file, one answer.

Runs in a lean interpreter of its own: see `driver_manager.cli.lean`. Whoever started it bounds its time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from driver_manager.adapters.host.evidence import EvidenceFolder, holders_within, with_surroundings
from driver_manager.adapters.host.roots import HostRoots
from driver_manager.adapters.report.log import LogForm
from driver_manager.domain import profile_json
from driver_manager.domain.errors import ExitCode, ManagerError

TARGET = __name__
HOLDERS_S = 10.0


def run(document: Mapping[str, Any], log: LogForm) -> int:
    """Save the evidence and print its `path`, or the `problem`."""
    profile = profile_json.decode(document["profile"])
    roots = HostRoots.from_document(document["roots"])
    holders = holders_within(roots, profile.paths.device_nodes, HOLDERS_S)
    folder = EvidenceFolder(roots.files(), profile.paths.evidence)
    try:
        name = f"{document['since_s']}-{profile.name}-wedge"
        answer = {"path": folder.save(name, with_surroundings(document["lines"], holders, roots))}
    except ManagerError as error:
        answer = {"problem": error.what}
    sys.stdout.write(json.dumps(answer) + "\n")
    return ExitCode.DONE
