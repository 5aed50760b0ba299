"""`health-watch --once` with a stand-in npu-smi as a real process: the right verdict for whatever it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.process import supervisor
from driver_manager.adapters.process.tools import this_process
from driver_manager.cli.main import run
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.health.watch import History, encode_watch_record
from tests.support.fakes.ascend_tree import AscendTree
from tests.support.fakes.npu_smi_tool import MOODS


@pytest.fixture(autouse=True)
def _quick(_bare: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TERMINATION_LOG", str(tmp_path / "termination-log"))
    monkeypatch.setattr(supervisor, "TERM_S", 0.2)


@pytest.fixture
def tree(tmp_path: Path) -> AscendTree:
    return AscendTree(tmp_path)


def once(tree: AscendTree, capfd: pytest.CaptureFixture[str], *more: str, timeout: str = "60s") -> dict[str, Any]:
    """What `--once -o json` prints; its exit code is checked to be the one it names."""
    code = run(["health-watch", "--once", "-o", "json", *tree.options, "--timeout", timeout, *more])
    body: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert body["exitCode"] == code
    return body


VERDICTS = {
    "healthy": ("healthy", "4 device(s) OK"),
    "leaves children": ("healthy", "4 device(s) OK"),
    "critical": ("unhealthy", "npu 0 chip 0 is Critical"),
    "one short": ("unhealthy", "3 of 4 PCI devices seen; 0000:02:00.0 missing"),
    "hang": ("unhealthy", "timed out after 0.5 s"),
    "hang ignoring TERM": ("unhealthy", "timed out after 0.5 s"),
    "hang with children": ("unhealthy", "timed out after 0.5 s"),
    "dead": ("unhealthy", "-8005: not initialised"),
    "crash": ("unhealthy", "exit status -11"),
    "busy": ("unknown", "-8020: device in use by another client"),
    "huge": ("unknown", "more than 256 KiB"),
    "huge error": ("unknown", "more than 256 KiB"),
    "garbage": ("unknown", "printed unexpected output"),
    "half": ("unknown", "printed unexpected output"),
    "nothing": ("unknown", "printed unexpected output"),
    "killed": ("unknown", "killed from outside"),
}
CODES = {"healthy": ExitCode.DONE, "unhealthy": ExitCode.MODULE_FAILED, "unknown": ExitCode.PREFLIGHT_FAILED}


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize("mood", MOODS)
def test_a_tool_gets_the_right_verdict(tree: AscendTree, capfd: pytest.CaptureFixture[str], mood: str) -> None:
    tree.tool.be(mood)
    machine, said = VERDICTS[mood]
    # A busy machine may take long to start a tool, so that only one that hangs has little time.
    body = once(tree, capfd, timeout="500ms" if said.startswith("timed out") else "60s")
    assert (body["health"], body["exitCode"]) == (machine, CODES[machine])
    assert said in body["reason"]
    assert tree.is_ready, "a look changes nothing"
    assert tree.marker is None


def test_a_missing_tool_is_unknown(tree: AscendTree, capfd: pytest.CaptureFixture[str]) -> None:
    tree.tool.path.unlink()
    assert once(tree, capfd)["reason"] == "npu-smi is not in /var/lib/Ascend/driver"


def test_another_driver_root_can_be_named(tree: AscendTree, capfd: pytest.CaptureFixture[str]) -> None:
    (tree.root / "usr/local").mkdir(parents=True)
    (tree.root / "var/lib/Ascend").rename(tree.root / "usr/local/Ascend")
    tree.tool.path.unlink(missing_ok=True)
    assert once(tree, capfd)["health"] == "unknown"
    moved = tree.root / "usr/local/Ascend/driver/tools"
    (moved / "npu-smi").write_text((moved / "npu-smi").read_text().replace("/var/lib/Ascend", "/usr/local/Ascend"))
    (moved / "mood").write_text((moved / "mood").read_text().replace("/var/lib/Ascend", "/usr/local/Ascend"))
    assert once(tree, capfd, "--driver-root", "/usr/local/Ascend/driver")["health"] == "healthy"


def test_a_link_that_leads_in_circles_is_unknown(tree: AscendTree, capfd: pytest.CaptureFixture[str]) -> None:
    tree.tool.path.unlink()
    tree.tool.path.symlink_to("npu-smi")
    body = once(tree, capfd)
    assert (body["health"], "symbolic links" in body["reason"]) == ("unknown", True)


def test_people_get_text_with_a_line_per_device(tree: AscendTree, capfd: pytest.CaptureFixture[str]) -> None:
    tree.tool.be("critical")
    assert run(["health-watch", "--once", *tree.options]) == ExitCode.MODULE_FAILED
    assert capfd.readouterr().out.splitlines()[:2] == [
        "unhealthy: npu 0 chip 0 is Critical",
        "  npu 0 chip 0 0000:c1:00.0: unhealthy (Critical)",
    ]


# what bad input gets


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--interval", "0"], "--interval is 0 seconds"),
        (["--metrics-textfile", "/no/such/folder/x.prom"], "the folder of --metrics-textfile"),
        (["--timeout", "0s"], "--timeout is 0 seconds"),
        (["--failures", "0"], "0 is not in the range"),
        (["--failures", "many"], "'many' is not a valid integer"),
        (["--interval", "soon"], "'soon' is not a duration"),
        (["--metrics-addr", "nowhere"], "'nowhere' is not an address such as :9400"),
        (["--metrics-addr", ":99999"], "':99999' is not an address"),
        (["--profile", "none"], "there is no profile 'none'"),
        (["--evidence-dir", "evidence"], "EVIDENCE_DIR is 'evidence', which is not a path on the host"),
        (["--proc-root", "/absent"], "cannot read /absent/sys/kernel/random/boot_id"),
    ],
)
def test_a_bad_option_is_two_lines_and_exit_code_two(
    tree: AscendTree, capfd: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert run(["health-watch", "--once", *tree.options, *more]) == ExitCode.USAGE
    lines = [json.loads(line)["message"] for line in capfd.readouterr().err.splitlines()]
    assert said in lines[0]
    assert lines[1].startswith("what to do: ")


def test_a_profile_without_a_probe_cannot_be_watched(tree: AscendTree, capfd: pytest.CaptureFixture[str]) -> None:
    text = tree.profile.read_text()
    tree.profile.write_text(text[: text.index("[probe]")])
    assert run(["health-watch", "--once", *tree.options]) == ExitCode.USAGE
    assert "the profile ascend has no probe" in capfd.readouterr().err


def test_a_look_by_hand_leaves_a_stuck_probe_alone_too(tree: AscendTree, capfd: pytest.CaptureFixture[str]) -> None:
    left = this_process("")
    tree.put("run/ascend/health-watch.json", encode_watch_record(History(stuck=left), "boot-1"))
    body = once(tree, capfd)
    assert (body["health"], tree.tool.starts) == ("unhealthy", [])
    assert f"(process {left.pid}) is stuck in the kernel" in body["reason"]
    tree.put("run/ascend/health-watch.json", encode_watch_record(History(stuck=left), "boot-0"))
    assert once(tree, capfd)["health"] == "healthy"
