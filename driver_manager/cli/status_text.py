"""`status` for people: headline, what needs a hand, devices, last run, what holds the node, and the rest."""

from __future__ import annotations

from typing import Any

from driver_manager.cli import reboot_status
from driver_manager.cli.options import styled
from driver_manager.cli.status_body import OFF_NODE
from driver_manager.domain import timestamps
from driver_manager.domain.digest import in_words
from driver_manager.domain.duration import spoken
from driver_manager.domain.errors import EXIT_MEANINGS, ExitCode
from driver_manager.domain.pods.client_record import MEANINGS, ClientState
from driver_manager.domain.policy import Loader
from driver_manager.domain.status.attention import NOTES
from driver_manager.domain.window import words

COLOURS = {"ready": "green", "upgrading": "yellow"}
"""Other states need a hand."""


def text(body: dict[str, Any], now_s: float) -> str:
    """The screen of `body`, whose words are on one line each; `now_s` is in seconds since the epoch."""
    lines = [*_devices(body["health"], now_s), *_last_run(body["lastRun"], now_s)]
    lines.append(f"journal   {_journal(body['journal'], now_s)}")
    cordon = body["cordon"] or "unknown"
    lines += [
        f"node      {body['node']} (profile {body['profile']}, mode {body['mode']}), cordon: {cordon}",
        *_labels(body),
    ]
    lines += [
        *_operands(body["operands"]),
        _digest(body),
        _loads(body["driverLoad"]),
        *_clients(body["generation"], now_s),
        *_kmm(body["kmm"]),
        *_host(body["host"]),
    ]
    reboot = reboot_status.rows(body["reboot"], has_marker=bool(body["host"].get("rebootMarker")))
    lines += _list("reboot", reboot) if reboot else []
    upcoming = body["next"]
    lines += _list("next", [f"{upcoming['decision']}: {upcoming['why']}", *upcoming["steps"], *upcoming["workloads"]])
    return "\n".join([_headline(body, now_s), *_attention(body), *lines])


def _headline(body: dict[str, Any], now_s: float) -> str:
    state = body["state"] or "unknown"
    word = styled(state, fg=COLOURS.get(state, "red"), bold=True)
    since = f" since {_when(body['since'], now_s)}" if body["since"] else ""
    return f"{word}{since}: {body['why']}"


def _when(moment: str, now_s: float) -> str:
    """A moment and how long ago that is."""
    then_s = timestamps.seconds_of(moment)
    ago = f" ({spoken(now_s - then_s)} ago)" if then_s is not None and now_s >= then_s else ""
    return f"{moment}{ago}"


def _attention(body: dict[str, Any]) -> list[str]:
    """Errors first, as they come: red, and notes yellow."""
    rows = []
    for one in body["attention"]:
        kind = styled(one["kind"], fg="yellow" if one["kind"] in NOTES else "red", bold=True)
        rows.append(f"{kind}: {one['what']}")
        rows += [f"  do: {one['remedy']}"] if one["remedy"] else []
    return _list("attention", rows) if rows else []


def _devices(health: dict[str, Any], now_s: float) -> list[str]:
    rows = [
        " ".join(filter(None, (one["name"], one["address"], one["health"] or "not judged")))
        + (f": {one['reason']}" if one["reason"] else "")
        for one in health["devices"]
    ]
    return _list("devices", [*rows, _watch(health, now_s)])


def _watch(health: dict[str, Any], now_s: float) -> str:
    """Who says so, and when."""
    sampled = f", sampled {_when(health['sampledAt'], now_s)}" if health["sampledAt"] else ""
    if health["source"] is None:
        return "health-watch has left no record on this host; --probe takes a sample now"
    since = f" since {_when(health['since'], now_s)}" if health["since"] else ""
    state = f" {health['state']}{since}" if health["state"] else ""
    reason = f": {health['reason']}" if health["reason"] else ""
    return f"({health['source']}{state}{reason}{sampled})"


def _last_run(run: dict[str, Any] | None, now_s: float) -> list[str]:
    if run is None:
        return _list("last run", ["not shown on the Node"])
    meaning = EXIT_MEANINGS.get(ExitCode(run["exitCode"]), "") if run["exitCode"] in set(ExitCode) else ""
    rows = [f"{run['state']}, exit {run['exitCode']}{f' ({meaning})' if meaning else ''}, {_when(run['ended'], now_s)}"]
    rows += [run["what"]]
    rows += [f"at: {run['step']}"] if run["step"] else []
    version = f", version {run['version']} loaded" if run["version"] else ""
    rows += [f"wanted digest {run['digest']}{version}"] if run["digest"] else []
    rows += [_window(run["window"])] if run["window"] else []
    return _list("last run", rows)


def _window(window: dict[str, Any]) -> str:
    so_far = "window, still open when it was measured" if window.get("open") else "window"
    return f"{so_far}: {words(window['seconds'], window['parts'])}"


def _journal(journal: dict[str, Any] | None, now_s: float) -> str:
    if journal is None:
        return "none: the node is not taken"
    if "problem" in journal:
        return f"unreadable: {journal['problem']}"
    lives = {True: "still running", False: "gone", None: "unknown whether it is still running"}[journal["ownerLives"]]
    old = journal["oldDriver"]
    services = f"; services stopped: {', '.join(journal['services'])}" if journal["services"] else ""
    since = f" since {_when(journal['begin'], now_s)}" if journal["begin"] else ""
    step = f"; last step noted: {journal['step']}" if journal["step"] else ""
    version = old["version"] if old else "none"
    return f"taken by {journal['owner']} ({lives}){since}; old driver {version}{services}{step}"


def _labels(body: dict[str, Any]) -> list[str]:
    rows = []
    for label in body["labels"]:
        was = f"  (journal: {label['journaled']})" if label["journaled"] is not None else ""
        unknown = "  (paused, and no journal)" if label["paused"] and label["journaled"] is None else ""
        rows.append(f"{label['key']}={'(absent)' if label['now'] is None else label['now']}{was}{unknown}")
    return _list("labels", rows if body["cordon"] else ["unknown"])


def _kmm(kmm: dict[str, str | None] | None) -> list[str]:
    if kmm is None:
        return []
    values = {name: kmm[name] for name in ("wanted", "asked", "workers", "ready")}
    shown = [f"{name}: {'unknown' if value is None else value or 'no version'}" for name, value in values.items()]
    return [f"kmm       {', '.join((str(kmm['module']), *shown))}"]


def _operands(operands: list[dict[str, Any]] | None) -> list[str]:
    if operands is None:
        return _list("operands", ["unknown"])
    return _list("operands", [f"{pod['pod']} {pod['phase']} {pod['why']}".rstrip() for pod in operands])


def _digest(body: dict[str, Any]) -> str:
    digest, host = body["digest"], body["host"]
    origin = f" (from {digest['from']})" if digest["from"] else ""
    recorded = digest["recorded"] or host.get("digestProblem") or ("none" if "kernel" in host else OFF_NODE)
    return f"digest    wanted {digest['wanted'] or 'unknown'}{origin}, recorded {recorded}"


def _loads(who: str) -> str:
    names = {
        Loader.CONTAINER: "its container",
        Loader.MANAGER: "this manager",
        Loader.KMM: "Kernel Module Management",
        Loader.NONE: "the host itself",
    }
    return f"loads     {names[Loader(who)]} (DRIVER_LOAD={who})"


def _clients(generation: dict[str, Any] | None, now_s: float) -> list[str]:
    """Since when this driver is ready, and what became of the clients of the one before."""
    if generation is None:
        return []
    since = f"ready since {_when(generation['ready'], now_s)}" if generation["ready"] else "ready"
    clients = [
        f"client {one['pod']} ({one['owner']}) {MEANINGS[ClientState(one['state'])]}" for one in generation["clients"]
    ]
    claims = [f"claim {name} was prepared for an earlier driver, and is still held" for name in generation["claims"]]
    return _list("driver", [since, *clients, *claims])


def _host(host: dict[str, Any]) -> list[str]:
    if "problem" in host:
        return [f"host      {host['problem']}"]
    modules = [
        f"{module['name']} {module['version'] or '(no version)'} refcount {module['refcount']}"
        + (f" held by {', '.join(module['holders'])}" if module["holders"] else "")
        for module in host["modules"]
    ]
    lines = [f"host      kernel {host['kernel']}, {len(host['pciDevices'])} device(s) on PCI"]
    modules += [f"{name} is being unloaded by the kernel" for name in host["leaving"]]
    lines += _list("modules", modules or ["not loaded"])
    lines += _list("pci", list(map(_function, host["functions"]))) if host["functions"] else []
    if host["rootMounts"]:
        lines += _list("mounts", host["rootMounts"])
    if host["hostDriver"]:
        lines.append(f"driver    installed on the host: {host['hostDriver']}")
    if host["slots"]:
        lines += _list("slots", list(map(_slot, host["slots"])))
    if host["artifacts"]:
        lines += _list("files", host["artifacts"])
    if host["rebootMarker"]:
        boot = "this boot" if host["rebootMarker"]["sameBoot"] else "an earlier boot"
        lines.append(f"marker    reboot required ({host['rebootMarker']['reason']}), of {boot}")
    if host["rebootMarkerProblem"]:
        lines.append(f"marker    {host['rebootMarkerProblem']}")
    return lines


def _function(one: dict[str, Any]) -> str:
    """One function of the bus: who has it, for whom it is kept, and which virtual machine uses it."""
    words = [f"driver {one['driver'] or 'none'}"]
    words += [f"kept for {one['override']}"] if one["override"] else []
    words += [f"IOMMU group {one['iommuGroup']}"] if one["iommuGroup"] else ["no IOMMU group"]
    words += [f"{one['virtualFunctions']} virtual function(s)"] if one["virtualFunctions"] else []
    words += [f"of {one['physicalFunction']}"] if one["physicalFunction"] else []
    words += ["stuck between two drivers"] if one["stuck"] else []
    return f"{one['address']} {', '.join(words)}" + "".join(f"; {holder}" for holder in one["holders"])


def _slot(slot: dict[str, Any]) -> str:
    what = f"{in_words(slot['digest']) or slot['name']} driver {slot['version'] or '(no version)'}"
    place = "current" if slot["current"] else "before the current one" if slot["previous"] else ""
    words = (place, f"for kernel {slot['kernel']}" if slot["kernel"] else "", slot["problem"])
    return f"{what} ({', '.join(filter(None, words))})"


def _list(title: str, rows: list[str]) -> list[str]:
    """Rows under one title, the title beside the first."""
    return [f"{title if number == 0 else '':<9} {row}" for number, row in enumerate(rows or ["none"])]
