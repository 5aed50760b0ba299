"""A child process that dies, or whose calls fail, at an effect on the host: counted as the kill sweep counts them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tests.support.control_plane.sweep.effects import Surroundings, effect_of

KILLED, CAME_TO_ITS_END, RAISED = 9, 0, 3


@dataclass(frozen=True)
class Blow:
    """What happens right before effect `number` (from 0) below `host`; None: an error of that number is raised."""

    number: int
    host: Path
    error: int | None = None


def struck(blow: Blow, act: Callable[[], object]) -> int:
    """Let `act` run in a child until `blow`; how the child ended: KILLED, CAME_TO_ITS_END, or RAISED."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return _ends(blow, act)


def _ends(blow: Blow, act: Callable[[], object]) -> NoReturn:
    around = Surroundings(str(blow.host), "/nowhere", "/nowhere")
    seen = 0

    def listen(event: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if event.startswith("import") or not effect_of(event, args, around):
            return
        seen += 1
        if seen != blow.number + 1:
            return
        if blow.error is None:
            os._exit(KILLED)
        raise OSError(blow.error, os.strerror(blow.error))

    code = CAME_TO_ITS_END
    sys.addaudithook(listen)
    try:
        act()
    except BaseException:  # noqa: BLE001  # whatever it is, the child ends here
        code = RAISED
    os._exit(code)
