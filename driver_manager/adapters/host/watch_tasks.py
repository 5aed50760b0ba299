"""What health-watch has done by short-lived processes: the NodeNotifier and the EvidenceKeeper port."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from driver_manager.adapters.process.task import TaskProcess, problem_in
from driver_manager.domain.health.notices import ClientAnswer, Notice
from driver_manager.domain.health.surroundings import Mute, MuteAnswer
from driver_manager.domain.health.wedge import Kept
from driver_manager.domain.window import Window

MUTE_S = 10.0
TELL_S = 20.0
CLIENTS_S = 30.0
EVIDENCE_S = 30.0


class ChildNotifier:
    """See `driver_manager.ports.health.NodeNotifier`."""

    def __init__(self, process: TaskProcess) -> None:
        self._process = process

    def mute(self) -> MuteAnswer:
        """See the port."""
        answer = self._process.ask(MUTE_S, {"task": "mute"})
        if "said" not in answer:
            return MuteAnswer(None, str(answer.get("garbage", "")), problem_in(answer))
        try:
            return MuteAnswer(Mute(float(answer["until_s"]), str(answer["said"]), str(answer["where"])))
        except (KeyError, TypeError, ValueError):
            return MuteAnswer(problem="its answer is not understood")

    def tell(self, notice: Notice) -> str:
        """See the port."""
        return problem_in(self._process.ask(TELL_S, {"task": "tell", "notice": notice.to_json()}))

    def tell_window(self, window: Window) -> str:
        """See the port."""
        return problem_in(self._process.ask(TELL_S, {"task": "window", "window": window.to_json()}))

    def restart_clients(self, load: str) -> ClientAnswer:
        """See the port."""
        answer = self._process.ask(CLIENTS_S, {"task": "clients", "load": load})
        left = problem_in(answer) or str(answer.get("left", ""))
        return ClientAnswer(
            _texts(answer, "restarted"), left, _texts(answer, "warnings"), answer.get("isEarly") is True
        )


def _texts(answer: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = answer.get(key)
    return tuple(map(str, found)) if isinstance(found, list) else ()


class ChildKeeper:
    """See `driver_manager.ports.health.EvidenceKeeper`."""

    def __init__(self, process: TaskProcess) -> None:
        self._process = process

    def keep(self, since_s: int, lines: Iterable[str]) -> Kept:
        """See the port."""
        answer = self._process.ask(EVIDENCE_S, {"since_s": since_s, "lines": list(lines)})
        return Kept(str(answer.get("path", "")), problem_in(answer))
