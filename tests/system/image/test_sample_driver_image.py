"""The sample driver container is built as its Containerfile says, and starts as the manifests call it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.image import builder

KERNEL = os.uname().release


@pytest.fixture(scope="module")
def sample(image: builder.Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[builder.Container]:
    tree = tmp_path_factory.mktemp("driver")
    modules = tree / "lib/modules" / KERNEL
    modules.mkdir(parents=True)
    (modules / "modules.dep").touch()
    built = builder.build_sample_driver(f"{builder.TAG}-sample-driver:test", image, tree)
    try:
        assert built.inspect()["config"]["Entrypoint"] == ["sample-driver"]
        assert built.inspect()["config"]["Cmd"] == ["run"]
        with built.container() as container:
            yield container
    finally:
        builder.remove(built)


def test_a_driver_that_cannot_load_is_neither_recorded_nor_ready(sample: builder.Container) -> None:
    # Not the real name: a machine with the real device may run this.
    env = {"DRIVER_CONFIG_DIGEST": "new", "DRIVER_MODULE": "driver_manager_absent"}
    started = sample.run("sample-driver", env=env)
    assert started.status == 1
    assert "module driver_manager_absent cannot be loaded" in started.err
    asked = sample.run("sample-driver", "ready", env=env)
    assert (asked.status, "not recorded in /run/rbln/rbln-driver.state" in asked.err) == (1, True)
    assert (sample.root() / "run/rbln/driver/lib/modules" / KERNEL / "modules.dep").exists()


def test_its_tree_is_where_the_script_looks(sample: builder.Container) -> None:
    assert (Path(sample.root()) / "opt/driver/lib/modules" / KERNEL / "modules.dep").exists()
