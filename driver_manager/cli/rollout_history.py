"""`rollout history`: the revisions of the DaemonSet, and how the rollout of each went. Changes nothing."""

from __future__ import annotations

import json
from typing import Any

import click

from driver_manager import schemas
from driver_manager.cli.help_screen import ScreenCommand
from driver_manager.cli.options import output_option
from driver_manager.cli.printing import in_form, put
from driver_manager.cli.rollout_body import moment
from driver_manager.cli.rollout_options import named_rollout, with_verb_options
from driver_manager.cli.rollout_session import open_rollouts
from driver_manager.cli.rollout_text import table, when
from driver_manager.core.fleet.looking import Sight
from driver_manager.domain import timestamps
from driver_manager.domain.duration import spoken
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.fleet.model import Past, Revision
from driver_manager.domain.setting import Values

Json = dict[str, Any]


@click.command(cls=ScreenCommand, name="history", short_help="List the revisions and how the rollout of each went.")
@named_rollout
@output_option
@with_verb_options
def history_command(*, name: str, output: str, values: Values) -> int:
    """List the revisions of the DaemonSet of the rollout NAME, the newest last, with how the rollout of each went.

    `rollout undo --to` takes any of them that is still there: by its number, or its name in the first column.
    """
    session = open_rollouts(values)
    sight, _ = session.readable(name)
    found = history_body(sight)
    put(in_form(output, found, lambda words: text(words, session.clock.wall())))
    return ExitCode.DONE


def history_body(sight: Sight) -> Json:
    """The form that `schemas/rollout-history.schema.json` describes."""
    revisions = {one.hash: one for one in (sight.fleet.revisions if sight.fleet is not None else ())}
    memory = sight.rollout.memory
    tried = {past.revision for past in memory.history}
    untried = sorted((one for one in revisions.values() if one.hash not in tried), key=lambda one: one.number)
    entries = [_entry(one.hash, one, None) for one in untried]
    entries += [_entry(past.revision, revisions.get(past.revision), past) for past in memory.history]
    return {
        "schemaVersion": schemas.VERSION,
        "rollout": sight.rollout.key,
        "target": memory.target or None,
        "good": memory.good or None,
        "failedRevisions": list(memory.failed),
        "history": entries,
    }


def _entry(name: str, revision: Revision | None, past: Past | None) -> Json:
    """One line: a revision that is there, or was, and how its rollout went."""
    return {
        "revision": name,
        "number": revision.number if revision is not None else None,
        "images": _images(revision.template) if revision is not None else [],
        "began": moment(past.began_s) if past is not None else None,
        "ended": moment(past.ended_s) if past is not None else None,
        "outcome": past.outcome if past is not None else "",
    }


def _images(template: str) -> list[str]:
    """The images of a pod template's containers, in their order, each once."""
    spec = (json.loads(template) if template else {}).get("spec") or {}
    found = [one.get("image") for kind in ("containers", "initContainers") for one in spec.get(kind) or []]
    return list(dict.fromkeys(one for one in found if type(one) is str))


def text(found: Json, now_s: float) -> str:
    """The table; `now_s` is in seconds since the epoch."""
    if not found["history"]:
        return "no revision"
    cells = [["REVISION", "NUMBER", "OUTCOME", "BEGAN", "TOOK", "IMAGES"]]
    for one in found["history"]:
        cells.append(
            [
                one["revision"] + ("*" if one["revision"] == found["target"] else ""),
                "gone" if one["number"] is None else str(one["number"]),
                _outcome(one, found),
                when(one["began"], now_s) if one["began"] else "-",
                _took(one),
                ", ".join(one["images"]) or "-",
            ]
        )
    return "\n".join(table(cells))


def _outcome(one: Json, found: Json) -> str:
    if one["outcome"]:
        return str(one["outcome"])
    if one["revision"] == found["target"] and one["began"]:
        return "under way"
    return "failed" if one["revision"] in found["failedRevisions"] else "-"


def _took(one: Json) -> str:
    began_s, ended_s = (timestamps.seconds_of(one[key]) if one[key] else None for key in ("began", "ended"))
    return "-" if began_s is None or ended_s is None else spoken(ended_s - began_s)
