"""`collect`: one file with what a bug report needs, from a node or from the cluster. Changes nothing there.

Each part that cannot be read is named in the manifest with its reason, and the others are still collected. The archive
is written part by part, so that memory does not grow with it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import platform
import re
import sys
import tarfile
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, Self
from urllib.parse import quote, urlencode

import click
from msgspec import Struct, field

from driver_manager import schemas
from driver_manager.adapters.host.evidence import kernel_lines_with, newest_evidence
from driver_manager.adapters.host.files import host_name, text_of
from driver_manager.adapters.host.pci import pci_devices
from driver_manager.adapters.kube.api import Answer, ApiRejected, KubeApi
from driver_manager.adapters.kube.transport import NOT_FOUND
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.adapters.report.log import LogReporter
from driver_manager.cli.cluster_status import cluster_body, cluster_text, open_api
from driver_manager.cli.options import command, unwritable, with_options
from driver_manager.cli.reconcile import RUN_OPTIONS, plan_text, policy_for
from driver_manager.cli.session import PartialRead, Session, host_roots, log_form, named_profile, node_name
from driver_manager.cli.status import gather, status_body, status_text
from driver_manager.domain import redaction, settings
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import (
    ApiRefused,
    ApiUnavailable,
    ConfigError,
    ExitCode,
    ManagerError,
    NodeMissing,
    Terminated,
)
from driver_manager.domain.fleet.spec import APPROVED, GROUP, PLURAL, RETRY, UNDO, VERSION
from driver_manager.domain.observation import Mode, Observation
from driver_manager.domain.profile import RUN_RECORD, Profile
from driver_manager.domain.redaction import allowed, redacted, redacted_values, with_annotations
from driver_manager.domain.settings import Values
from driver_manager.domain.text import json_text, one_line, several, words_on_one_line
from driver_manager.domain.wire import written_time

Json = dict[str, Any]

FILE_BYTES = 1024 * 1024
TOTAL_BYTES = 32 * 1024 * 1024
"""Most bytes of one file and of all, before they are compressed."""

LOG_LINES = 5_000
LOG_BYTES = 8 * 1024 * 1024
"""What the kubelet sends of one log. Of more it would leave out the newest part, which the limit of a file keeps."""

MOST_EVENTS = 2_000
MOST_EVIDENCE = 3
MOST_LOGS = 60
COLLECT_S = 180.0
"""Seconds after which no further part is read from the cluster."""

BLIND_S = 1.0
"""Seconds for a request after one that found no server."""

MOST_FAILURES = 2
"""Requests in a row without an answer, after which the server is not asked again."""

PAGE = 100


class Left(Struct):
    """A part that is not in the archive: forbidden, missing, timeout, limit or unreadable, and why."""

    name: str
    reason: str
    why: str


def reason_of(error: Exception) -> str:
    match error:
        case ApiRejected():  # a log of a container that has not started
            return "missing"
        case ApiRefused() | PermissionError():
            return "forbidden"
        case ApiUnavailable() | TimeoutError():
            return "timeout"
        case NodeMissing() | FileNotFoundError():
            return "missing"
    return "unreadable"


class Bundle:
    """A compressed archive on `stream`, in the folder `name`. All its texts are redacted."""

    def __init__(self, stream: BinaryIO, name: str, now_s: float) -> None:
        self._tar = tarfile.open(fileobj=stream, mode="w|gz")  # noqa: SIM115  # `close` ends it
        self._name, self._now_s = name, now_s
        self._left_bytes = TOTAL_BYTES
        self.files: list[Json] = []
        self.left: list[Left] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Write no more: tarfile would try again, and print that it failed."""
        self._tar.fileobj.closed = True  # type: ignore[attr-defined]

    def add(self, name: str, text: str) -> None:
        """Add a file with `text`, of which the newest part is kept. Raises OSError."""
        name = _plain(name)
        data, room = text.encode(errors="backslashreplace"), min(FILE_BYTES, self._left_bytes)
        is_cut = len(data) > room
        if is_cut:  # at the end of a line, and before it is redacted, so that a huge log takes no long time
            data = data[len(data) - room :]
            data = data[data.find(b"\n") + 1 :]
        if is_cut and not data:
            self.left.append(Left(name, "limit", "the archive has reached its limit, or the text has one line only"))
            return
        data = redacted(data.decode(errors="replace")).encode(errors="backslashreplace")
        self._put(name, data)
        self._left_bytes -= min(len(data), self._left_bytes)
        self.files.append({"name": name, "bytes": len(data), "cut": is_cut})

    def part(self, name: str, read: Callable[[], str | None]) -> None:
        """Add what `read` gives, or note why there is nothing; None is what is missing. Raises Terminated."""
        try:
            text = read()
        except Terminated:
            raise
        except ManagerError as error:
            self.left.append(Left(name, reason_of(error), error.what))
        except OSError as error:
            self.left.append(Left(name, reason_of(error), error.strerror or str(error)))
        except Exception:  # noqa: BLE001  # the bug that is reported may be one of a part
            self.left.append(Left(name, "error", traceback.format_exc()))
        else:
            if text is None:
                self.left.append(Left(name, "missing", "there is none"))
            else:
                self.add(name, f"{text.strip(chr(10))}\n" if text.strip() else "")

    def close(self, about: Json) -> None:
        """Add the manifest and end the archive. Raises OSError."""
        left = [{"name": one.name, "reason": one.reason, "why": one.why} for one in self.left]
        body = {"schemaVersion": schemas.VERSION, **about, "files": self.files, "notCollected": left}
        self._put("manifest.json", json_text(redacted_values(body), indent=2).encode() + b"\n")
        self._tar.close()

    def _put(self, name: str, data: bytes) -> None:
        about = tarfile.TarInfo(f"{self._name}/{name}")
        about.size, about.mode, about.mtime = len(data), 0o600, int(self._now_s)
        self._tar.addfile(about, io.BytesIO(data))


_ODD = re.compile(r"[^\w .:@+,=-]|^\.+$", re.ASCII)


def _plain(name: str) -> str:
    """`name` without what a terminal obeys or leads out of the folder: names of files on the host may have all."""
    return "/".join(_ODD.sub("_", part) for part in name.split("/"))


def _document(body: Any) -> str:
    return json_text(redacted_values(body), indent=2)


class Kube:
    """Reads of one API server until `end`; a part after it is a timeout."""

    def __init__(self, api: KubeApi, end: Deadline) -> None:
        self._api = api
        self._end = end
        self._failures = 0

    def get(self, path: str, what: str) -> Json | None:
        """The object, None if it is missing. Raises ManagerError."""
        found: Json | None = self._asked(lambda: self._api.call("GET", path, what, passing=frozenset({NOT_FOUND})))
        return found

    def text(self, path: str, what: str) -> str:
        found: str = self._asked(lambda: self._api.text(path, what))
        return found

    def items(self, path: str, what: str, **query: str) -> Iterator[Json]:
        """The objects of a list, page by page; none if the server does not know the resource. Raises ManagerError."""
        pages = self._api.pages(f"{path}?{urlencode({**query, 'limit': PAGE})}", what, passing=frozenset({NOT_FOUND}))
        while (page := self._asked(lambda: next(pages, None))) is not None:
            yield from page.get("items") or []

    def _asked(self, ask: Callable[[], Any]) -> Any:
        if self._end.is_over:
            raise ApiUnavailable(f"not asked for after {self._end.allowed_s:g} s", "Run again.")
        if self._failures >= MOST_FAILURES:
            raise ApiUnavailable("not asked for, as the API server does not answer", "Run again.")
        try:
            found = ask()
        except ApiUnavailable:
            self._failures += 1
            self._api.limit_retries(BLIND_S)
            raise
        except Answer:
            found = None
        self._failures = 0
        return found


class Vendor(Struct):
    """Where the vendor's objects are, and what was found of them: names by kind."""

    namespaces: list[str]
    deploy_prefix: str = ""
    pods: set[str] = field(default_factory=set)
    daemon_sets: set[str] = field(default_factory=set)
    logs: int = 0


class Collector(Struct):
    bundle: Bundle
    kube: Kube
    vendor: Vendor
    node: str = ""

    def objects(self) -> None:
        """Rollouts, the vendor's pods and DaemonSets, and Events about them and the node."""
        with self._noting("rollouts"):
            form = with_annotations(redaction.ROLLOUT, (APPROVED, RETRY, UNDO))
            for item in self.kube.items(f"/apis/{GROUP}/{VERSION}/{PLURAL}", f"list {PLURAL}.{GROUP}"):
                self._in_namespace(item)
                self._object(f"rollouts/{item['metadata']['namespace']}", item, form)
        with self._noting("pods"):
            for pod in self._pods():
                self._pod(pod)
        for namespace in self.vendor.namespaces:
            path = f"/apis/apps/v1/namespaces/{quote(namespace)}/daemonsets"
            with self._noting(f"daemonsets/{namespace}"):
                for item in self.kube.items(path, "list daemonsets.apps"):
                    self.vendor.daemon_sets.add(item["metadata"]["name"])
                    self._object(f"daemonsets/{namespace}", item, redaction.DAEMON_SET)
        self.bundle.part("events.jsonl", self._events)

    def _in_namespace(self, item: Json) -> None:
        """Note that objects of the vendor are in the namespace of `item`."""
        if item["metadata"]["namespace"] not in self.vendor.namespaces:
            self.vendor.namespaces.append(item["metadata"]["namespace"])

    def _object(self, folder: str, item: Json, form: redaction.Form) -> None:
        self.bundle.add(f"{folder}/{item['metadata']['name']}.json", _document(allowed(item, form)) + "\n")

    @contextlib.contextmanager
    def _noting(self, name: str) -> Generator[None, None, None]:
        """Note why the rest of a list is not there. Raises OSError of the archive, and Terminated."""
        try:
            yield
        except Terminated:
            raise
        except ManagerError as error:
            self.bundle.left.append(Left(name, reason_of(error), error.what))
        except (KeyError, TypeError, AttributeError) as error:
            self.bundle.left.append(Left(name, "unreadable", f"not what was asked for: {error!r}"))

    def _pods(self) -> Iterator[Json]:
        """The vendor's pods, on the node if there is one; of its namespaces if those of all may not be listed."""
        query = {"fieldSelector": f"spec.nodeName={self.node}"} if self.node else {}
        try:
            if self.node:
                yield from filter(self._is_vendors, self.kube.items("/api/v1/pods", "list pods", **query))
                return
        except ApiRefused as error:
            self.bundle.left.append(Left("pods of all namespaces", reason_of(error), error.what))
        for namespace in list(self.vendor.namespaces):
            yield from self.kube.items(f"/api/v1/namespaces/{quote(namespace)}/pods", "list pods", **query)

    def _is_vendors(self, pod: Json) -> bool:
        """True if the pod is in a namespace of the vendor, runs driver-manager, or follows a deploy label."""
        is_driver = any(map(redaction.is_ours, pod["spec"].get("initContainers") or ()))
        if is_driver:
            self._in_namespace(pod)
        prefix = self.vendor.deploy_prefix
        is_operand = bool(prefix) and any(key.startswith(prefix) for key in pod["spec"].get("nodeSelector") or ())
        return is_driver or is_operand or pod["metadata"]["namespace"] in self.vendor.namespaces

    def _pod(self, pod: Json) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        self.vendor.pods.add(name)
        self._object(f"pods/{namespace}", pod, redaction.POD)
        spec, status = pod["spec"], pod.get("status") or {}
        # In a report of a whole cluster, a DaemonSet's pod that is ready needs no log.
        is_well = any(
            one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions", ())
        )
        owners = {one.get("kind") for one in pod["metadata"].get("ownerReferences") or ()}
        if not self.node and is_well and "DaemonSet" in owners:
            return
        states = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        restarted = {one["name"] for one in states if one.get("restartCount")}
        for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
            if redaction.is_ours(container):
                self._log(namespace, name, container["name"], "")
                if container["name"] in restarted:
                    self._log(namespace, name, container["name"], "previous")

    def _log(self, namespace: str, pod: str, container: str, which: str) -> None:
        file = f"logs/{namespace}/{pod}/{container}{f'.{which}' if which else ''}.log"
        if self.vendor.logs >= MOST_LOGS:
            self.bundle.left.append(Left(file, "limit", f"{MOST_LOGS} logs are collected"))
            return
        self.vendor.logs += 1
        query = {"container": container, "tailLines": LOG_LINES, "limitBytes": LOG_BYTES}
        query |= {"previous": "true"} if which else {}
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/log?{urlencode(query)}"
        self.bundle.part(file, lambda: self.kube.text(path, "get pods/log"))

    def _events(self) -> str:
        """The newest Events, one on each line, the oldest first. Raises the error of the last list if there is none."""
        found, error = list[tuple[str, str]](), None
        about_node = {"fieldSelector": f"involvedObject.kind=Node,involvedObject.name={self.node}"} if self.node else {}
        places = [("default", about_node)] + [(one, {}) for one in self.vendor.namespaces if one != "default"]
        for namespace, query in places:
            path = f"/api/v1/namespaces/{quote(namespace)}/events"
            try:
                for item in self.kube.items(path, "list events", **query):
                    if self._concerns(item):
                        line = json_text(allowed(item, redaction.EVENT))
                        found.append((str(item.get("lastTimestamp") or item.get("eventTime") or ""), line))
            except ManagerError as refused:
                self.bundle.left.append(Left(f"events of {namespace}", reason_of(refused), refused.what))
                error = refused
            found = sorted(found)[-MOST_EVENTS:]
        if not found and error is not None:
            raise error
        return "\n".join(line for _, line in found)

    def _concerns(self, event: Json) -> bool:
        about = event.get("involvedObject") or {}
        kind, name = about.get("kind"), str(about.get("name"))
        if kind == "Node":
            return not self.node or name == self.node
        of_pods = name in self.vendor.pods or any(name.startswith(f"{one}-") for one in self.vendor.daemon_sets)
        return kind in ("DaemonSet", "DriverRollout") or (kind == "Pod" and of_pods)


def _namespaces(values: Values, known: Iterable[Profile]) -> list[str]:
    given = (values[settings.POD_NAMESPACE], values[settings.OPERATOR_NAMESPACE], *(one.namespace for one in known))
    return list(dict.fromkeys(filter(None, given)))


def _versions(kube: Kube, **more: Any) -> str:
    server = None
    with contextlib.suppress(ManagerError):
        server = (kube.get("/version", "get the server's version") or {}).get("gitVersion")
    ours = {"driverManager": version("driver-manager"), "python": platform.python_version()}
    return _document({**ours, "apiServer": server, **more})


# A node


def _collect_node(values: Values, bundle: Bundle, missing: PartialRead, session: Session) -> None:
    profile, node = session.profile, session.node.name
    # A Node that could not be read may be any: then the name decides.
    own_name = session.roots.root != Path("/") or host_name(session.roots) == node
    is_here = session.is_here and (missing.has_node or own_name)
    seen = list[Observation]()

    def status() -> str:
        policies = {mode: policy_for(values, mode) for mode in Mode}
        facts, reboot = gather(session, missing, policies, probes=False, from_afar=not is_here)
        seen.append(facts.obs)
        body = redacted_values(status_body(facts, reboot))
        bundle.add("status.json", json_text(body, indent=2) + "\n")
        return click.unstyle(status_text(words_on_one_line(body), facts.now_s))

    def plan() -> str:
        unread = missing.first()
        if unread is not None:
            raise unread
        if not seen:
            raise ManagerError("its facts could not be read", "See status.txt.")
        return click.unstyle(plan_text(session, seen[0], policy_for(values, session.mode)))

    bundle.part("status.txt", status)
    bundle.part("plan.txt", plan)
    if is_here:
        _collect_host(bundle, session)
    else:
        bundle.left.append(Left("host", "missing", "this command does not run on the node"))
    api = session.cluster.api  # type: ignore[attr-defined]
    kube = Kube(api, Deadline.after(COLLECT_S, session.clock.monotonic))
    namespaces = _namespaces(values, (profile,))
    collector = Collector(bundle, kube, Vendor(namespaces, profile.deploy.prefix), node)
    found = list[Json]()

    def node_object() -> str | None:
        found.extend(filter(None, [kube.get(f"/api/v1/nodes/{quote(node)}", "get nodes")]))
        form = with_annotations(redaction.NODE, profile.keys.names)
        return _document(allowed(found[0], form)) if found else None

    def versions() -> str:
        info = (found[0].get("status") or {}).get("nodeInfo") if found else None
        kernel = text_of(session.roots.proc / "sys/kernel/osrelease") if is_here else None
        return _versions(kube, profile=profile.name, kernel=kernel, node=allowed(info or {}, redaction.NODE_INFO))

    bundle.part("node.json", node_object)
    bundle.part("journal.json", lambda: session.node.annotations.get(profile.keys.journal))
    bundle.part("versions.json", versions)
    collector.objects()


def _collect_host(bundle: Bundle, session: Session) -> None:
    """The records of runs, health-watch and rebooter, the newest evidence, and the kernel's messages."""
    files, paths, profile = session.roots.files(), session.profile.paths, session.profile
    folder = paths.load_record.rpartition("/")[0]
    runs = list[str]()
    with contextlib.suppress(OSError):
        runs = [f"{folder}/{name}" for name in sorted(files.names(folder)) if name.startswith(RUN_RECORD)]
    known = (
        *(paths.state_file, paths.load_record, paths.owner_note, paths.failure_note, paths.health_record),
        *(paths.run_figures, paths.bindings, paths.baseline, paths.client_record, paths.reload_request),
        *(paths.reboot_marker, paths.reboot_wish, paths.rebooter_record, paths.recovery_record, paths.mute_file),
    )
    evidence = list[str]()
    for one in dict.fromkeys(filter(None, (paths.evidence, paths.reboot_evidence))):
        try:
            evidence += [f"{one}/{name}" for name in newest_evidence(files, one, MOST_EVIDENCE)]
        except OSError as error:
            bundle.left.append(Left(f"host{one}", reason_of(error), str(error.strerror)))
    for path in dict.fromkeys(filter(None, (*known, *runs, *evidence))):
        # Not through a symlink, which may lead to the host's passwords. A byte more shows that the file is cut.
        bundle.part(
            f"host{path}",
            lambda path=path: files.read(path, FILE_BYTES + 1, follow_last=False),  # type: ignore[misc]
        )

    def kernel() -> str:
        loaded = session.ports().host.modules()
        # Without the function: some drivers name the device only.
        addresses = (one.rpartition(".")[0] for one in pci_devices(session.roots, profile))
        names = (pattern.partition("*")[0].rstrip("_") for pattern in profile.modules.own)
        return "\n".join(kernel_lines_with(session.roots, {*loaded, *names, *profile.modules.roots, *addresses}))

    bundle.part("kernel.log", kernel)


# A cluster


def _collect_cluster(values: Values, bundle: Bundle, clock: SystemClock, log: LogReporter) -> None:
    """The nodes, rollouts, controllers, and the driver pods that are not ready. Raises ConfigError."""
    named, known = named_profile(values)
    api, now_s = open_api(values, clock, log), clock.wall()
    kube = Kube(api, Deadline.after(COLLECT_S, clock.monotonic))

    def status() -> str:
        body = redacted_values(cluster_body(api, values, now_s))
        bundle.add("status.json", json_text(body, indent=2) + "\n")
        return click.unstyle(cluster_text(words_on_one_line(body), now_s))

    bundle.part("status.txt", status)
    bundle.part("versions.json", lambda: _versions(kube))
    namespaces = _namespaces(values, (named,) if named is not None else known.values())
    Collector(bundle, kube, Vendor(namespaces)).objects()


# The command

DESCRIPTION = "Collect what a bug report needs into one file."


@contextlib.contextmanager
def _archive(path: str, default: str) -> Generator[tuple[BinaryIO, str], None, None]:
    """A new file that has its name once it is whole, or standard output for `-`; its name. Raises ConfigError."""
    if path == "-":
        if sys.stdout.isatty():
            raise ConfigError("the archive is not printed on a terminal", "Redirect standard output, or give a file.")
        try:
            yield sys.stdout.buffer, "standard output"
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise unwritable(error) from error
        return
    target = Path(path or default)
    target = target / default if os.path.isdir(target) else target  # noqa: PTH112  # False for a name that is too long
    if os.path.lexists(target):
        raise ConfigError(f"{target} exists", "Remove it, or give --output another file.")
    beside = target.with_name(f".{target.name}.{os.urandom(6).hex()}")
    try:
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                yield stream, str(target)
                stream.flush()
                os.fsync(descriptor)
            _named(beside, target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        what = f"{target} cannot be written: {error.strerror or error}"
        raise ConfigError(what, "Give --output another file, or - for standard output.") from error


def _named(beside: Path, target: Path) -> None:
    """Give the file its name, which no other file may have. Raises OSError."""
    try:
        target.hardlink_to(beside)
    except PermissionError:  # a file system without links
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        beside.rename(target)


@command("collect", DESCRIPTION)
@click.argument("node", default="")
@click.option(
    "-f", "--output", "path", metavar="FILE", default="", help="The file; - is standard output. It must not exist."
)
@with_options(*RUN_OPTIONS, (settings.REBOOT_ATTEMPTS_WINDOW, settings.VFIO_BIND), typed=settings.TYPED_BY_HAND)
def collect_command(*, node: str, path: str, values: Values) -> int:
    """Write driver-manager-NODE-TIME.tar.gz: status, plan, journal, Events, the vendor's pods and DaemonSets, logs of
    driver-manager, and on the node its records, evidence and the kernel's messages about the driver.

    Works on the node, in a debug pod, and from a laptop for NODE; without NODE it collects from the cluster: all nodes,
    rollouts, and the driver pods that are not ready. What cannot be read is left out, and manifest.json has the reason.
    Secrets are left out: other variables than those of driver-manager, other annotations, tokens and keys in texts.
    Read the files before you publish them. Changes nothing.
    """
    values = values.having(settings.NODE_NAME, node) if node else values
    for mode in Mode:
        policy_for(values, mode)  # invalid options fail before any request
    roots, clock = host_roots(values), SystemClock()
    is_of_cluster = not values[settings.NODE_NAME] and roots.root == Path("/")
    name = "cluster" if is_of_cluster else node_name(values, roots)
    missing = PartialRead(log_form(values).place)
    session = None if is_of_cluster else missing.session(values)
    if session is None:
        clock.install()
    log = session.log if session is not None else log_form(values).reporter(clock.wall)
    now_s = clock.wall()
    title = f"driver-manager-{name}-{written_time(now_s).replace('-', '').replace(':', '')}"
    with _archive(path, f"{title}.tar.gz") as (stream, target), Bundle(stream, title, now_s) as bundle:
        if session is not None:
            _collect_node(values, bundle, missing, session)
        else:
            _collect_cluster(values, bundle, clock, log)
        if {one["name"] for one in bundle.files} <= {"versions.json"}:
            raise missing.first() or ManagerError(_summary(bundle, target), "Check the rights and the kubeconfig.")
        bundle.close({"node": name, "at": written_time(now_s), "profile": session.profile.name if session else None})
    log.info(_summary(bundle, target))
    return ExitCode.DONE


def _summary(bundle: Bundle, target: str) -> str:
    size, cut = sum(one["bytes"] for one in bundle.files), sum(one["cut"] for one in bundle.files)
    found = f"{target}: {len(bundle.files)} file(s), {size // 1024} KiB"
    cuts = f", of {cut} the newest part only" if cut else ""
    left = several(f"{one.name} ({one.reason})" for one in bundle.left if one.reason != "missing")
    return one_line(f"{found}{cuts}{f'; not collected: {left}' if left else ''}")
