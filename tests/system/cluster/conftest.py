"""What every test of the cluster tier gets: its marker, the fixtures of the real control plane, and nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.control_plane.fixtures import (  # noqa: F401  # fixtures, used by their names
    admin_api,
    containers,
    control_plane,
    dra,
    node,
    nothing_left_in_the_cluster,
    nothing_left_running,
    operands,
    proxy,
    rollout_fleet,
    runner_for,
    workloads,
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lives in this folder; the hook gets the whole session's items."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)
