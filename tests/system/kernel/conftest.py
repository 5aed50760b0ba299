"""How guest results become pytest results on the host: each guest test is an item here that replays its case.

The guest boots once, when the first of its tests is about to be reported, and runs just the tests that were selected.
In the guest this file is not loaded.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from tests.support.control_plane.fixtures import control_plane  # noqa: F401  # a fixture, used by its name
from tests.support.control_plane.servers import ControlPlane
from tests.support.image import builder
from tests.support.kernel import guest, guest_images, guest_node, tools
from tests.support.kernel.containers import IMAGE_VARIABLE, WITHOUT_IMAGE_VARIABLE
from tests.support.kernel.guest import GuestModule, ReplayedCase
from tests.support.kernel.inside import REBOOT_VARIABLE, SHARE_VARIABLE
from tests.support.node import machine
from tests.support.selection import share
from tests.support.tiers import TierError, skip_or_fail

IN_IMAGE = "test_image_in_guest.py"
SHARES = 9
"""Of the kill sweep over devices, of which each round runs the whole command four times."""


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Guest tests become replayed cases; every other file is left to pytest."""
    if module_path.is_relative_to(tools.GUEST_TESTS):
        module: pytest.Module = GuestModule.from_parent(parent, path=module_path)
        return module
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the whole tier, before `-m` selects."""
    for item in items:
        if item.path.is_relative_to(tools.TESTS):
            item.add_marker(pytest.mark.kernel)
        if item.path.is_relative_to(tools.ON_NODE):
            item.add_marker(pytest.mark.node)


@pytest.fixture
def guest_kernel(request: pytest.FixtureRequest) -> None:
    """Stands in for the guest's fixture of this name where a case is only replayed; anything else must not run here."""
    if not isinstance(request.node, ReplayedCase):
        pytest.fail("a guest test was about to run on the host", pytrace=False)


@pytest.fixture(scope="session")
def guest_environment(control_plane: ControlPlane) -> dict[str, str]:  # noqa: F811  # the fixture
    """What the guest's tests find in their environment beside the driver roots; it may hold credentials.

    What they are to reach on the host must be up when this returns, and listen on 127.0.0.1: the guest knows it as
    guest.HOST_ADDRESS.
    """
    url = control_plane.url.replace("127.0.0.1", guest.HOST_ADDRESS)
    return {
        SHARE_VARIABLE: str(share(SHARES)),
        "GUEST_API_URL": url,
        "GUEST_API_CA": str(control_plane.ca),
        "GUEST_ADMIN_TOKEN": control_plane.admin.token,
        "GUEST_AGENT_KUBECONFIG": str(control_plane.kubeconfig(control_plane.agent_with_events.token, server=url)),
        "GUEST_REBOOTER_KUBECONFIG": str(control_plane.kubeconfig(control_plane.rebooter.token, server=url)),
    }


@pytest.fixture(scope="session")
def guest_report(request: pytest.FixtureRequest) -> guest.GuestReport:
    """The one boot of this session, with the selected guest tests."""
    if lacking := tools.missing():
        skip_or_fail(f"kernel tier: missing {'; '.join(lacking)}")
    # Only now: what the environment starts on the host is of no use without a guest.
    environment = request.getfixturevalue("guest_environment")
    items = request.session.items
    replayed = [item for item in items if isinstance(item, ReplayedCase)]
    if any(item.path.name == "test_reboot.py" for item in items):
        environment = {**environment, REBOOT_VARIABLE: "true"}
    needed: list[Path] = []
    try:
        with contextlib.ExitStack() as stack:
            if any(item.path.name == IN_IMAGE for item in replayed):
                environment = {**environment, **_image_environment()}
            if any(item.path.is_relative_to(tools.ON_NODE) for item in replayed):
                environment = {**environment, **_node_environment(stack)}
                needed = [machine.kubelet_program().parent]
            report = guest.run([item.nodeid for item in replayed], environment, needed)
    except TierError as error:
        pytest.fail(str(error), pytrace=False)
    return report


def _image_environment() -> dict[str, str]:
    """Where the guest finds the image's files, which it sees with the rest of the host's; or why there are none."""
    lacking = builder.missing()
    if lacking:
        return {WITHOUT_IMAGE_VARIABLE: _reason("image", lacking)}
    return {IMAGE_VARIABLE: str(builder.built().root())}


def _node_environment(stack: contextlib.ExitStack) -> dict[str, str]:
    """Where the guest finds what its node is made of, its control plane until `stack` ends; or why there is nothing."""
    lacking = machine.missing()
    if lacking:
        return {guest_node.WITHOUT_VARIABLE: _reason("node", lacking)}
    return {
        guest_node.STOCK_VARIABLE: str(guest_images.stock(guest.prepare())),
        guest_node.PLANE_VARIABLE: stack.enter_context(
            guest_node.plane_on_host(Path(os.environ[machine.ASSETS_VARIABLE]))
        ),
        machine.KUBELET_VARIABLE: str(machine.kubelet_program().parent),
    }


def _reason(tier: str, lacking: list[str]) -> str:
    """Why a part of the guest's tests is skipped; where nothing may be, they fail with it."""
    reason = f"{tier} tier: missing {'; '.join(lacking)}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    return reason
