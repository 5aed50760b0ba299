"""A reader finds every command working as written: the console blocks of README.md and docs/ are run."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Generator

import pytest

from driver_manager.sandbox.scenarios import NEW_DIGEST
from tests.support.docs.console import EXITS, PAGES, Command, Unknown, commands, substituted
from tests.support.docs.markdown import ROOT
from tests.support.fakes.sandboxed import ByHand, by_hand

pytestmark = [pytest.mark.shares(3), pytest.mark.submission]

BROKEN = 'name = "acme"\nstrategy = "in-place"\npci_vendor = "0x1E52"\n'
REST = """
[keys]
journal = "acme.example/driver-manager.journal"
cordon = "acme.example/driver-upgrade-cordon"
[modules]
roots = ["acme_npu"]
[paths]
driver_root = "/run/acme/driver"
state_file = "/run/acme/acme-driver.state"
load_record = "/run/acme/driver-manager.json"
"""
FOUND = [command for page in PAGES for command in commands(page)]
RUN = list({command.text: command for command in FOUND if substituted(command.text) is not None}.values())
"""One of each: a command that two pages have needs to be run once."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Generator[ByHand, None, None]:
    """Where they are run: a node with an old driver loaded, a folder with the files that pages speak of."""
    with by_hand(tmp_path_factory.mktemp("console")) as found:
        (found.tree.root / "broken.toml").write_text(BROKEN + REST)
        config = found.tree.root / "etc/kubernetes/admin.conf"
        config.parent.mkdir(parents=True)
        config.write_text(found.kubeconfig.read_text())
        yield found


def ran(node: ByHand, text: str) -> subprocess.CompletedProcess[str]:
    """How bash ended that ran `text`, where the host's tree stands for /host and for the folder of a page's profile."""
    line = re.sub("(--profile-file |profile check )", rf"\1{node.tree.root}/", text)
    argv = ["bash", "--norc", "--noprofile", "-c", line.replace("=/host/", f"={node.tree.root}/")]
    env, null = node.environment(DRIVER_CONFIG_DIGEST=NEW_DIGEST, LOG_FORMAT="text"), subprocess.DEVNULL
    return subprocess.run(
        argv, env=env, cwd=ROOT, stdin=null, capture_output=True, text=True, timeout=300.0, check=False
    )


@pytest.mark.parametrize("command", RUN, ids=lambda command: f"{command.page}:{command.line}")
def test_the_command_works_as_written(node: ByHand, command: Command) -> None:
    text = substituted(command.text)
    assert text is not None
    done = ran(node, text)
    where = f"{command.page}:{command.line}: $ {command.text}\n{done.stdout}{done.stderr}"
    assert done.returncode == EXITS.get(text, 0), where
    output = (done.stdout + done.stderr).replace(f"{node.tree.root}/", "")
    lines = [re.sub(r"^\d\d:\d\d:\d\d\.\d{3} ", "", line).strip() for line in output.splitlines()]
    assert not [line for line in command.prints if line not in lines], where


def test_nothing_that_a_reader_only_looks_with_changed_the_node(node: ByHand) -> None:
    before = node.cluster.node()
    for text in ("driver-manager status", "driver-manager plan", "driver-manager restore --dry-run"):
        ran(node, text)
    assert node.cluster.node() == before


def test_the_readme_has_its_two_commands_first_and_an_unknown_command_is_not_passed_over() -> None:
    readme = [command.text for command in FOUND if command.page == "README.md"]
    assert (readme[:2], len(RUN) >= 12) == (["scripts/demo", "scripts/test"], True)
    with pytest.raises(Unknown, match="make-it-so"):
        substituted("make-it-so --now")
