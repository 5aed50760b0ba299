"""The vendors' driver containers are built by the commands of docs/driver-containers.md, from stand-in packages."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docs.console import commands
from tests.support.docs.markdown import DOCS
from tests.support.fakes.driver_packages import run_file, write_deb
from tests.support.image import builder

pytestmark = pytest.mark.release

PAGE = DOCS / "driver-containers.md"
KERNEL = "6.1.0-18-amd64"
TREE = {f"lib/modules/{KERNEL}/modules.dep": b"", f"lib/modules/{KERNEL}/updates/x.ko": b"x"}


def build_of(kind: str) -> list[str]:
    (line,) = [one.text for one in commands(PAGE) if one.text.startswith("buildah build") and one.text.endswith(kind)]
    return shlex.split(line)


def built(kind: str, image: builder.Image, folder: Path) -> builder.Image:
    """The image, built by the page's command in a checkout with the folder `package`."""
    tag = f"localhost/{kind}:page"
    words = build_of(kind)
    words[words.index("-t") + 1] = tag
    shutil.copytree(builder.CHECKOUT / "images", folder / "images")
    options = ["--quiet", "--layers=false", f"--build-arg=BASE={image.name}"]
    builder.checked([*words[:2], *options, *words[2:]], builder.BUILD_TIMEOUT_S, folder)
    return builder.Image(tag, 0.0)


@pytest.fixture
def container(request: pytest.FixtureRequest, image: builder.Image, tmp_path: Path) -> Iterator[builder.Container]:
    if request.param == "rebellions-driver":
        made = write_deb(tmp_path / "made", "rebellions", "2.0.1", TREE)
        (tmp_path / "package").mkdir()
        made.rename(tmp_path / "package" / made.name)
    else:
        (tmp_path / "package").mkdir()
        (tmp_path / "package/npu-driver.run").write_bytes(run_file(TREE))
    result = built(request.param, image, tmp_path)
    try:
        found = result.inspect()["config"]
        assert (found["Entrypoint"], found["Cmd"]) == ([request.param], ["run"])
        with result.container() as made_container:
            yield made_container
    finally:
        builder.remove(result)


@pytest.mark.parametrize("container", ["rebellions-driver"], indirect=True)
def test_the_package_is_unpacked_and_its_scripts_are_not_run(container: builder.Container) -> None:
    assert (container.root() / "opt/driver/lib/modules" / KERNEL / "updates/x.ko").read_bytes() == b"x"
    assert not (container.root() / "opt/package").exists()
    refused = container.run("rebellions-driver", env={"DRIVER_CONFIG_DIGEST": "new"})
    assert (refused.status, "no modules for kernel" in refused.err) == (1, True), refused
    line = f"mkdir -p /opt/driver/lib/modules/$(uname -r); rebellions-driver install; ls /install/lib/modules/{KERNEL}"
    installed = container.run("sh", "-c", line)
    assert (installed.status, "modules.dep" in installed.out) == (0, True), installed


@pytest.mark.parametrize("container", ["ascend-driver"], indirect=True)
def test_the_run_is_in_the_image_and_unpacks_there(container: builder.Container) -> None:
    refused = container.run("ascend-driver", env={"DRIVER_CONFIG_DIGEST": "new"})
    assert (refused.status, "no modules for kernel" in refused.err) == (1, True), refused
    assert (container.root() / "var/lib/Ascend/driver.unpacked/lib/modules" / KERNEL / "updates/x.ko").exists()


def test_a_package_without_modules_is_refused_by_the_build(image: builder.Image, tmp_path: Path) -> None:
    made = write_deb(tmp_path / "made", "rebellions", "2.0.1", {"usr/src/rebellions/x.c": b""})
    (tmp_path / "package").mkdir()
    made.rename(tmp_path / "package" / made.name)
    with pytest.raises(builder.ImageTierError, match="has no lib/modules: build its modules"):
        built("rebellions-driver", image, tmp_path)
