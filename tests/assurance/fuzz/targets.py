"""All fuzz targets by name: the one list that both engines, the script and the tests share."""

from __future__ import annotations

from tests.assurance.fuzz import answers, documents, doors, forged, host_trees
from tests.assurance.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (*documents.TARGETS, *host_trees.TARGETS, *answers.TARGETS, *doors.TARGETS, *forged.TARGETS)
}
