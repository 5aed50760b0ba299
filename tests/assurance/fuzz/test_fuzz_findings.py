"""Inputs that once got more out of a reader than they should, each as it was found or smaller."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from driver_manager import profiles
from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.modules import ModuleTrees
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.profile import LoadScope, Modules
from driver_manager.domain.text import one_line, shown
from tests.assurance.fuzz.answers import CLAIM, LEASE, NODE, POD, PODS
from tests.assurance.fuzz.documents import HEALTH, SHIPPED, probe_seed
from tests.assurance.fuzz.host_trees import KERNEL, TOOLS, part
from tests.assurance.fuzz.target import check, parts
from tests.assurance.fuzz.targets import TARGETS
from tests.support.fakes.elf_files import GLOBAL, SECTION_BYTES, elf

SHIPPED_PROFILE = (SHIPPED / "rebellions.toml").read_bytes()
DEEP = b"[" * 100_000
NUMBERED = {"name": "node-1", "labels": {"a": 1}}
A_BILLION_CHIPS = "Total Count : 1\nNPU ID : 1\nChip Count : 999999999\n"
OPEN_METRICS = b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text; version=1.0x\r\n\r\n"
CLAIMS_OF_A_LIST = {"versions": [{"version": "v1"}], "items": [{**CLAIM, "metadata": {"name": []}}]}


def profile_with(old: bytes, new: bytes) -> bytes:
    assert old in SHIPPED_PROFILE
    return SHIPPED_PROFILE.replace(old, new)


def answer(ask: int, body: object) -> bytes:
    return bytes([ask]) + parts((1, "0" + json.dumps(body)))


def event(body: object) -> bytes:
    return answer(3, body) + b"\n"


def many_tables() -> bytes:
    """A module whose two thousand symbol tables are all the same bytes."""
    count, module = 2_000, elf(*[("printk", GLOBAL, 0)] * 3_000)
    (sections_at,) = struct.unpack_from("<Q", module, 0x28)
    null, table, names = (module[sections_at + SECTION_BYTES * number :][:SECTION_BYTES] for number in range(3))
    header = bytearray(module[:64])
    struct.pack_into("<HH", header, 0x3A, SECTION_BYTES, count + 2)
    return bytes(header) + module[64:sections_at] + null + table + names + table * (count - 1)


FINDINGS = [
    ("profile", profile_with(b"timeout_s = 20", b"timeout_s = " + b"9" * 5_000), "a number of 5,000 digits"),
    ("profile", profile_with(b"timeout_s = 20", b"timeout_s = " + b"9" * 400), "more than a float holds"),
    ("profile", profile_with(b'tool = "rbln-smi"', b'tool = "rbln\\u0000smi"'), "NUL in a file's name"),
    ("profile", profile_with(b"/run/rbln/driver-manager.json", b"/run/rbln/\\n.json"), "a line feed in a path"),
    ("slots", b'{"schema": 1, "holders": [{"node": "n", "uid": "u", "bootId": "b", "since": true}]}', "since when?"),
    ("health-record", HEALTH.replace(b"is Critical", b"\\ud800"), "half a character in the status for systemd"),
    ("probe-output", probe_seed("npu-smi-list", 0, "Total Count : " + "9" * 5_000), "a count of 5,000 digits"),
    ("probe-output", probe_seed("npu-smi-list", 0, A_BILLION_CHIPS), "a list of a billion chips"),
    ("duration", b"9" * 65_000 + b"x", "two minutes to read a duration"),
    ("selector", b"a," * 65_000, "quadratic in its commas"),
    ("address", "bücher:9400".encode(), "a host that the resolver would try to encode"),
    ("host", parts(part(f"lib/modules/{KERNEL}/modules.dep", "!")), "a FIFO for the list of modules"),
    ("driver-tree", parts(part(f"run/rbln/driver/lib/modules/{KERNEL}/modules.symbols", "!")), "a FIFO for symbols"),
    ("driver-tree", parts(part(f"run/rbln/driver/lib/modules/{KERNEL}/extra/rebellions.ko", "!")), "a FIFO, a module"),
    ("processes", parts(part("proc/4711/stat", "4711")), "a stat that psutil cannot split"),
    ("marks", parts(part("sys/module/rebellions/initstate", b"\x90")), "bytes that are no text"),
    ("module-file", b"\0" + many_tables(), "two thousand tables of the same bytes"),
    ("api-answers", answer(5, {"metadata": [1]}), "a Lease whose metadata is a list"),
    ("api-answers", bytes([5]) + parts(*((1, "0" + json.dumps(body)) for body in (LEASE, {}))), "no Node behind it"),
    ("api-answers", answer(0, {**NODE, "metadata": NUMBERED}), "a label that is a number"),
    ("api-answers", answer(0, {"metadata": {"name": 7}}), "a name that is a number"),
    ("api-answers", answer(1, {**PODS, "items": [{**POD, "status": {"phase": 1}}]}), "a phase that is a number"),
    ("api-answers", answer(1, {**PODS, "metadata": {"resourceVersion": 9}}), "a version that is a number"),
    ("api-answers", answer(2, CLAIMS_OF_A_LIST), "a claim's name that is a list"),
    ("api-answers", event({"type": "BOOKMARK", "object": {"metadata": [1]}}), "a bookmark of a list"),
    ("api-answers", bytes([3]) + parts((1, b"0" + DEEP + b"\n")), "an event too deep to parse"),
    ("api-answers", bytes([0]) + parts((1, b"0" + DEEP)), "an answer too deep to parse"),
    ("api-answers", bytes([0]) + parts((6, b"0" + DEEP)), "a refusal too deep to parse"),
    ("api-answers", bytes([8]) + parts((11, b"0" + DEEP)), "an eviction's refusal too deep to parse"),
    ("api-answers", answer(7, {"status": "Failure"}), "a review that is a Status"),
    ("http-request", OPEN_METRICS, "a header that ended the watch"),
    ("command-line", TARGETS["command-line"].seeds[3], "a profile file without end"),
]


@pytest.mark.parametrize(("name", "data"), [finding[:2] for finding in FINDINGS], ids=[one[2] for one in FINDINGS])
def test_what_was_found_once_is_read_or_refused(name: str, data: bytes) -> None:
    check(TARGETS[name], data)


@pytest.mark.parametrize("kind", ["fifo", "folder", "endless", "large"])
def test_a_profile_file_that_is_none_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "own.toml"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "endless":
            path.symlink_to("/dev/zero")
        case "large":
            path.write_bytes(b"#" * (profiles.MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="cannot be read"):
        profiles.known(str(path))


def test_a_profile_file_may_be_a_link_as_a_config_map_makes_one(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(SHIPPED_PROFILE)
    (tmp_path / "own.toml").symlink_to("data")
    assert "rebellions" in profiles.known(str(tmp_path / "own.toml"))


def test_a_chain_of_a_thousand_modules_is_put_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    count = 3_000
    tree = tmp_path / "driver/lib/modules" / KERNEL
    tree.mkdir(parents=True)
    (tree / "modules.dep").write_text("".join(f"m{number}.ko:\n" for number in range(count)))
    roots = HostRoots(tmp_path, tmp_path / "proc", tmp_path, tmp_path)
    trees = ModuleTrees(roots, KERNEL, Modules((), load=LoadScope.TREE))
    monkeypatch.setattr(trees, "_modinfo", lambda path: {"depends": f"m{int(Path(path).stem[1:]) + 1}"})
    order = [name for name, _ in trees._in_order("/driver")]
    assert order == [f"m{number}" for number in reversed(range(count))]


def test_what_every_tool_prints_reaches_the_readers_of_module_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, real = list[str](), ModuleTrees._modinfo

    def noted(trees: ModuleTrees, path: str) -> dict[str, str]:
        seen.append(real(trees, path).get("version", ""))
        return real(trees, path)

    monkeypatch.setattr(ModuleTrees, "_modinfo", noted)
    check(TARGETS["driver-tree"], parts((TOOLS, "version: 77\n")))
    assert "77" in seen


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("plain ümläut → ✓\nsecond", "plain ümläut → ✓\nsecond"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("a\rb\tc\u2028d\u202ee", "a\\rb\\tc\\u2028d\\u202ee"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_would_move_a_terminals_cursor_is_spelled_out(text: str, spelled: str) -> None:
    assert shown(text) == spelled
    assert "\n" not in one_line(text)
    one_line(text).encode()
