"""Targets that are text and become values: profiles, journals, markers, records, probe output, options, labels."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from driver_manager import profiles
from driver_manager.adapters.host.holders import devices_of, mount_points_below
from driver_manager.adapters.report.http import parse_address
from driver_manager.domain import baseline, host, host_record, journal, selectors
from driver_manager.domain.fleet.spec import RolloutObject, read
from driver_manager.domain.fleet.status import status_of_problems
from driver_manager.domain.health import watch as health_record
from driver_manager.domain.health.metrics import HealthReport, families
from driver_manager.domain.health.parsers import PARSERS, parse
from driver_manager.domain.health.watch import History, Surroundings
from driver_manager.domain.host import DeviceVerdict, Health, Marker, PastFailure, ProbeResult
from driver_manager.domain.host_record import HostRecord
from driver_manager.domain.journal import Journal, Owner
from driver_manager.domain.metrics import exposition
from driver_manager.domain.node import MAX_LABEL_VALUE_CHARS
from driver_manager.domain.node_state import Generation, decode_generation, encode_generation
from driver_manager.domain.pods import client_record, journal_check, labels
from driver_manager.domain.pods.client_record import ClientRecord
from driver_manager.domain.profile import Probe, Profile, decode_profile, encode_profile
from driver_manager.domain.reboot import state as reboot_record
from driver_manager.domain.reboot.maintenance_windows import parse_windows
from driver_manager.domain.reboot.state import Record, Slots, decode_slots, encode_slots
from driver_manager.domain.recovery import RecoveryRecord, decode_recovery_record, encode_recovery_record
from driver_manager.domain.text import MAX_DURATION_S, is_digest, parse_duration
from driver_manager.domain.wire import parsed
from driver_manager.sandbox.fake_tools import NPU_SMI_TABLE
from tests.assurance.fuzz.target import Form, Target, assert_conforms, text_of
from tests.support.fakes import rollout_objects
from tests.support.fakes.builders import PAUSED, PROFILE, PROFILES

SHIPPED = Path(profiles.__file__).parent
GOLDEN = Path(__file__).parents[2] / "unit/golden"
BOOT = "boot-1"
PRESENT = ("0000:c1:00.0", "0000:01:00.0")
T = TypeVar("T")


def golden(pattern: str) -> tuple[bytes, ...]:
    """The golden files that match, by name."""
    return tuple(path.read_bytes() for path in sorted(GOLDEN.glob(pattern)))


def assert_speakable(*texts: str) -> None:
    """Raise where a text cannot be written to a file, a socket or a terminal."""
    for text in texts:
        text.encode()


def read_profile(data: bytes) -> None:
    found = profiles.parse(text_of(data), "fuzz.toml")
    assert_conforms(found, Profile)
    assert decode_profile(encode_profile(found)) == found
    assert all(text.isprintable() for text in _texts(json.loads(encode_profile(found))))


def _texts(body: Any) -> list[str]:
    match body:
        case str():
            return [body]
        case list():
            return [text for item in body for text in _texts(item)]
        case dict():
            return [text for item in body.values() for text in _texts(item)]
    return []


def read_journal(data: bytes) -> None:
    found = journal.decode(text_of(data)).claims
    assert_conforms(found, Journal)
    again = journal.decode(journal.encode(found)).claims
    # An owner that is neither a pod nor a process is no owner, however that was spelled.
    assert replace(again, owner=found.owner) == found
    assert journal.encode(again) == journal.encode(found)
    labels.restored(found.labels, found.labels, PAUSED)


def read_host_record(data: bytes) -> None:
    found = host_record.decode(text_of(data))
    assert_conforms(found, HostRecord)
    # A field of an earlier version is named when it is read, and is not written again.
    assert host_record.decode(host_record.encode(found)) == replace(found, refused=())
    claims = journal_check.Checked(Journal(Owner(pid=1), BOOT, record=found.run))
    whole = journal_check.with_record(claims, found, BOOT, PROFILE)
    assert set(whole.journal.services) <= set(PROFILE.host_services)
    assert set(whole.journal.removed) <= set(PROFILE.modules.conflicting_removable)


def read_baseline(data: bytes) -> None:
    found = baseline.decode(text_of(data))
    assert_conforms(found, baseline.Baseline)
    assert baseline.decode(baseline.encode(found)).boot_id == found.boot_id
    compared = baseline.of_new_driver(ProbeResult(Health.HEALTHY, "1 device(s)"), found)
    assert_speakable(compared.reason, *found.remarks)


def read_marker(data: bytes) -> None:
    found = host.decode_marker(text_of(data))
    assert_conforms(found, Marker)
    assert found.reason in host.REASONS
    if found.boot_id:
        # The oldest evidence may go: what is written again is spelled in full and may be longer than what was read.
        again = host.decode_marker(host.encode_marker(found))
        assert replace(again, evidence=()) == replace(found, evidence=())
    request = reboot_record.request_of(found, BOOT)
    assert_speakable(request.key)
    assert len(request.key) < 100


def kept(
    decode: Callable[[str], T], encode: Callable[[T], str], kind: type[T], shown: Callable[[T], list[str]] | None = None
) -> Callable[[bytes], None]:
    """Reads what is the same once it was written and read again, with texts that are shown."""

    def read_kept(data: bytes) -> None:
        found = decode(text_of(data))
        assert_conforms(found, kind)
        assert decode(encode(found)) == found
        assert_speakable(*(shown(found) if shown is not None else ()))

    return read_kept


SEEN = Surroundings(
    boot_id=BOOT, driver="1", is_loaded=True, ready=True, is_withdrawn=False, can_request=True, marker=None
)


def shown_of_clients(found: ClientRecord) -> list[str]:
    shown = encode_generation(found.generation)
    assert decode_generation(shown) == found.generation
    return [shown, *map(str, found.clients), *found.unknown]


def read_health_record(data: bytes) -> None:
    text = text_of(data)
    assert_conforms(health_record.decode_watch_record(text, BOOT), History)
    found = health_record.resume_watch(text, SEEN, 100.0, 60.0, 3)
    assert_conforms(found, History)
    assert health_record.decode_watch_record(health_record.encode_watch_record(found, BOOT), BOOT).state is found.state
    assert_speakable(found.reason, *found.evidence, exposition(families(HealthReport(found))))


def read_probe_output(data: bytes) -> None:
    """The first byte picks the parser, the second the exit status."""
    names, (kind, status), out = sorted(PARSERS), data[:2].ljust(2, b"\0"), text_of(data[2:])
    message = out.splitlines()[-1][:300] if out.splitlines() else ""
    parser = names[kind % len(names)]
    probe = next((one.probe for one in PROFILES.values() if one.probe and one.probe.parser == parser), None)
    found = parse(probe or Probe("tool", parser=parser), status, out, message, PRESENT)
    assert_conforms(found, ProbeResult)
    assert_speakable(found.reason, *(one.name + one.reason + one.address for one in found.devices))
    exposition(families(HealthReport(History(), found)))


def probe_seed(parser: str, status: int, out: str | bytes) -> bytes:
    number = sorted(PARSERS).index(parser)
    return bytes([number, status]) + (out.encode() if isinstance(out, str) else out)


SICK = DeviceVerdict("a", Health.UNHEALTHY, "x", "0000:c1:00.0")
BASELINE = baseline.Baseline(BOOT, "1.0", Health.UNHEALTHY, reason="x", devices=(SICK,), served=("0000:c1:00.0",))
RBLN = json.dumps({"devices": [{"name": "RBLN-CA12", "status": "normal", "pci": {"bus_id": PRESENT[0]}}]})
PROBES = (
    *(probe_seed("npu-smi", 0, table) for table in golden("npu-smi/[0-9]*.txt")),
    *(probe_seed("npu-smi-list", 0, listed) for listed in golden("npu-smi/list*.txt")),
    probe_seed("npu-smi", 0, NPU_SMI_TABLE),
    probe_seed("npu-smi", 187, "dcmi module initialize failed. ret is -8005\n"),
    probe_seed("rbln-smi", 0, RBLN),
    probe_seed("nvidia-smi", 0, "0, 00000000:C1:00.0, OK\n1, 00000000:01:00.0, [GPU requires reset]\n"),
    probe_seed("exit-status", 3, "no\n"),
)


def read_rollout(data: bytes) -> None:
    """A DriverRollout as the API server sends it: a policy, or what is wrong with it."""
    try:
        body = parsed(text_of(data))
    except ValueError:
        return
    found = read(body, rollout_objects.zones)
    assert_conforms(found, RolloutObject)
    assert (found.policy is None) == bool(found.problems)
    assert all(problem.isprintable() for problem in found.problems)
    status = status_of_problems(found.problems, found.status, found.generation, 0.0)
    assert_speakable(json.dumps(status))
    assert status_of_problems(found.problems, status, found.generation, 1.0) == status


def read_labels(data: bytes) -> None:
    """Lines `key=now=journaled`."""
    rows = [line.split("=", 2) for line in text_of(data).split("\n") if line.count("=") == 2]
    now, journaled = {key: value for key, value, _ in rows}, {key: value for key, _, value in rows}
    found = labels.originals(now, journaled, frozenset(now), PAUSED)
    paused = {key: labels.paused_form(value, PAUSED) for key, value in found.items()}
    assert all(labels.is_paused(value, PAUSED) for value in paused.values())
    fits = {key: value for key, value in found.items() if len(value) <= MAX_LABEL_VALUE_CHARS}
    assert all(len(paused[key]) <= MAX_LABEL_VALUE_CHARS for key in fits)
    back = labels.restored({**now, **paused}, found, PAUSED)
    # A value that reads as paused already is not an original value.
    assert {key: back.get(key) for key in found if paused[key] != found[key]} == {
        key: value for key, value in found.items() if paused[key] != value
    }


def read_selector(data: bytes) -> None:
    found = selectors.parse(text_of(data))
    assert isinstance(found.matches({"a": "b"}), bool)


def read_schedule(data: bytes) -> None:
    found = parse_windows(text_of(data))
    assert isinstance(found.is_open(1_700_000_000.0), bool)
    assert parse_windows(found.text).windows == found.windows


def read_duration(data: bytes) -> None:
    seconds = parse_duration(text_of(data))
    assert math.isfinite(seconds)
    assert 0 <= seconds <= MAX_DURATION_S


def read_address(data: bytes) -> None:
    host, port = parse_address(text_of(data))
    assert 0 <= port <= 65535
    assert host.isascii(), "getaddrinfo would try to encode it as a domain"


def read_digest(data: bytes) -> None:
    text = text_of(data)
    assert not is_digest(text) or (text.isprintable() and text == text.strip())


def read_mounts(data: bytes) -> None:
    """A mount table, in bytes as the kernel gives them."""
    table = data.decode(errors="surrogateescape")
    points = mount_points_below(table, "/run/rbln/driver")
    assert all(point == "/run/rbln/driver" or point.startswith("/run/rbln/driver/") for point in points)
    devices_of(table, points)


MOUNTS = (
    b"25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    b"36 25 0:31 / /run/rbln/driver rw,relatime shared:1 - overlay overlay rw\n"
    b"37 36 0:32 / /run/rbln/driver/a\\040b\\134 rw - tmpfs tmpfs rw\n"
)

STUCK = Owner(pid=7, start_ticks=8, pid_namespace=9)
WEDGED = History(reason="npu 0 chip 0 is Critical", failures=2, evidence=("1 unhealthy: x",), driver="7", stuck=STUCK)
HEALTH = health_record.encode_watch_record(WEDGED, BOOT).encode()

ROLLOUTS = tuple(
    json.dumps({**rollout_objects.rollout(spec, undo="1:a"), "status": json.loads(status)}).encode()
    for spec, status in itertools.product((rollout_objects.SPEC, rollout_objects.FULL), golden("rollout-status-*.json"))
)

FAILURES = kept(host.decode_failure, host.encode_failure, PastFailure, lambda found: [found.what])
CLIENTS = kept(client_record.decode, client_record.encode, ClientRecord, shown_of_clients)
RECORDS = kept(reboot_record.decode_reboot_record, reboot_record.encode_reboot_record, Record)
RECOVERIES = kept(decode_recovery_record, encode_recovery_record, RecoveryRecord)
RELOAD = host.ReloadRequest(BOOT, "7", "npu 0 is lost")
RELOADS = kept(host.decode_reload_request, host.encode_reload_request, host.ReloadRequest)
SLOTS = kept(decode_slots, encode_slots, Slots)
GENERATIONS = kept(decode_generation, encode_generation, Generation)
TARGETS = (
    Target("profile", read_profile, tuple(path.read_bytes() for path in sorted(SHIPPED.glob("*.toml")))),
    Target("journal", read_journal, golden("journal-*.json"), Form.JSON),
    Target("baseline", read_baseline, (baseline.encode(BASELINE).encode(),), Form.JSON),
    Target("host-record", read_host_record, golden("host-record-*.json"), Form.JSON),
    Target("failure-note", FAILURES, golden("failure-*.json"), Form.JSON),
    Target("marker", read_marker, (*golden("marker-*.json"), b"driver upgrade needs a reboot\n"), Form.JSON),
    Target("rebooter-record", RECORDS, golden("rebooter-*.json"), Form.JSON),
    Target("recovery-record", RECOVERIES, golden("recovery-v*.json"), Form.JSON),
    Target("reload-request", RELOADS, (host.encode_reload_request(RELOAD).encode(),), Form.JSON),
    Target("slots", SLOTS, golden("slots-*.json"), Form.JSON),
    Target("client-record", CLIENTS, golden("clients-*.json"), Form.JSON),
    Target("generation", GENERATIONS, golden("generation-*.json"), Form.JSON),
    Target("health-record", read_health_record, (HEALTH,), Form.JSON, allowed=()),
    Target("rollout", read_rollout, ROLLOUTS, Form.JSON, allowed=()),
    Target("probe-output", read_probe_output, PROBES, allowed=(), runs=2_000),
    Target("labels", read_labels, (f"a=true=x\nb={PAUSED}=true\nc=v_{PAUSED}=v\nd=false=\n".encode(),), allowed=()),
    Target("selector", read_selector, (b"a=b,c!=d,e in (x,y),!f", b"k8s.io/a notin (b)"), allowed=(ValueError,)),
    Target("schedule", read_schedule, (b"Sat,Sun 02:00-06:00; Mon-Fri 22:00-04:00",), allowed=(ValueError,)),
    Target("duration", read_duration, (b"1h30m", b"90", b"1.5h", b"100ms"), allowed=(ValueError,)),
    Target("address", read_address, (b":9400", b"127.0.0.1:9400", b"[::1]:80")),
    Target("digest", read_digest, (b"f" * 64,), allowed=()),
    Target("mount-table", read_mounts, (MOUNTS,), allowed=()),
)
