"""Owns the verdict on a killed run and the run after it: pure comparison with what an undisturbed run leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from tests.support.control_plane.sweep.outcome import JOURNALS, Outcome


@dataclass(frozen=True)
class Verdict:
    """What was lost, each as lines that say where; all empty where nothing was."""

    lost_labels: tuple[str, ...] = ()
    lost_cordons: tuple[str, ...] = ()
    leaked_cordons: tuple[str, ...] = ()
    leftover_journals: tuple[str, ...] = ()
    leftover_annotations: tuple[str, ...] = ()
    wrong_states: tuple[str, ...] = ()
    wrong_drivers: tuple[str, ...] = ()
    wrong_evictions: tuple[str, ...] = ()
    wrong_restarts: tuple[str, ...] = ()
    wrong_exit_codes: tuple[str, ...] = ()
    uncovered_effects: tuple[str, ...] = ()

    def by_name(self) -> dict[str, tuple[str, ...]]:
        """The lines by what was lost, in the order above."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        return "\n".join(f"{name}: {line}" for name, lines in self.by_name().items() for line in lines)


def judge(wanted: Outcome, got: Outcome, *, edits: Mapping[str, str], uncovered: str, pods: frozenset[str]) -> Verdict:
    """Compare with the undisturbed `wanted`. `edits` are an administrator's, who wins; `pods` may be evicted, by uid.

    `uncovered` says which effect of the killed run was not among the recorded ones.
    """
    ours = {key: value for key, value in got.annotations.items() if key in JOURNALS}
    return Verdict(
        lost_labels=_differences({**wanted.labels, **edits}, got.labels),
        lost_cordons=("the administrator's cordon is gone",) if wanted.is_cordoned and not got.is_cordoned else (),
        leaked_cordons=("our cordon is still there",) if got.is_cordoned and not wanted.is_cordoned else (),
        leftover_journals=tuple(f"{key} = {value}" for key, value in ours.items() if key not in wanted.annotations),
        leftover_annotations=_differences(_but(wanted.annotations, ours), _but(got.annotations, ours)),
        wrong_states=() if got.shown == wanted.shown else (f"it shows {got.shown}, not {wanted.shown}",),
        wrong_drivers=_of_the_driver(wanted, got),
        wrong_evictions=_of_the_pods(wanted, got, pods),
        wrong_restarts=_of_the_clients(wanted, got),
        wrong_exit_codes=() if got.code == wanted.code else (f"{got.code}, not {wanted.code}",),
        uncovered_effects=(uncovered,) if uncovered else (),
    )


def _but(values: Mapping[str, str], without: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in values.items() if key not in without}


def _differences(wanted: Mapping[str, str], got: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        f"{key} is {got.get(key)!r}, not {wanted.get(key)!r}"
        for key in sorted({*wanted, *got})
        if wanted.get(key) != got.get(key)
    )


def _of_the_driver(wanted: Outcome, got: Outcome) -> tuple[str, ...]:
    if wanted.driver == got.driver:
        return ()
    facts = ((wanted.modules, got.modules), (wanted.devices, got.devices), (wanted.files, got.files))
    found = [line for pair in facts for line in _differences(*pair)]
    found += [f"mounts: {got.mounts!r}"] if wanted.mounts != got.mounts else []
    found += [f"services: {got.services}, not {wanted.services}"] if wanted.services != got.services else []
    return tuple(found)


def _of_the_pods(wanted: Outcome, got: Outcome, pods: frozenset[str]) -> tuple[str, ...]:
    found = [f"pod {uid} was evicted {times} times" for uid, times in got.evicted.items() if times > 1]
    found += [f"pod {uid} was not to be evicted" for uid in got.evicted if uid not in pods]
    found += ["the bystander is not running"] if got.bystander != "Running" else []
    if wanted.jobs and wanted.jobs != got.jobs:
        found.append(f"pods are {got.jobs}, not {wanted.jobs}")
    return tuple(found)


def _of_the_clients(wanted: Outcome, got: Outcome) -> tuple[str, ...]:
    """Each as often as for an undisturbed run's driver; for the driver of an earlier boot, once at most."""
    found = [f"no Event tells of the restart of {name}" for name in got.untold]
    for name, times in wanted.restarts.items():
        *earlier, now = got.restarts[name]
        found += [f"{name} was restarted {now} times, not {times[-1]}"] if now != times[-1] else []
        found += [f"{name} was restarted {count} times before the boot" for count in earlier if count > 1]
    return tuple(found)
