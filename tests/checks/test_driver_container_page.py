"""docs/driver-containers.md and deploy/examples belong together; an example changes one container of its overlay."""

from __future__ import annotations

import re
import shlex

import pytest

from driver_manager.profiles import builtin
from scripts.releasing.kustomize import DEPLOY, EXAMPLES, Json, only, render, render_example
from tests.support.docs.console import commands
from tests.support.docs.markdown import DOCS, ROOT

PAGE = DOCS / "driver-containers.md"
VENDORS = {"rebellions-driver": "rebellions", "nvidia-driver": "nvidia", "ascend-driver": "ascend"}
KERNEL = "6.1.0-18-amd64"
SHARED = ROOT / "images/common/driver-container.sh"


def spec_of(objects: list[Json]) -> Json:
    """Of the driver's DaemonSet."""
    (found,) = [one for one in objects if one["kind"] == "DaemonSet" and one["metadata"]["name"].endswith("-driver")]
    spec: Json = found["spec"]
    return spec


def driver_of(objects: list[Json]) -> Json:
    """The driver's container."""
    containers: list[Json] = spec_of(objects)["template"]["spec"]["containers"]
    (found,) = [one for one in containers if one["name"] == "driver"]
    return found


def env(container: Json) -> dict[str, str]:
    """Its literal environment."""
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


def test_the_page_has_every_example_and_every_image_and_no_other() -> None:
    folders = {path.name for path in (DEPLOY / "examples").iterdir()}
    assert folders == set(EXAMPLES)
    assert set(re.findall(r"deploy/examples/([\w-]+)", PAGE.read_text())) == folders
    typed = [one.text for one in commands(PAGE)]
    applied = {word for line in typed if " apply " in line for word in shlex.split(line) if word.startswith("deploy/")}
    assert applied == {f"deploy/examples/{name}" for name in folders}
    built = {shlex.split(line)[-1] for line in typed if line.startswith("buildah build")}
    assert built == {f"images/{name}" for name in ("rebellions-driver", "ascend-driver")}


@pytest.mark.parametrize(("example", "overlay"), VENDORS.items())
def test_an_example_changes_its_overlays_driver_container_alone(example: str, overlay: str) -> None:
    plain, changed = render(overlay), render_example(example)
    ours = [spec_of(objects)["template"]["spec"]["initContainers"] for objects in (plain, changed)]
    assert ours[0] == ours[1], "the manager's container is the overlay's"
    watch = [spec_of(objects)["template"]["spec"]["containers"][1] for objects in (plain, changed)]
    assert watch[0]["name"] == "health-watch"
    assert watch[0] == watch[1]
    driver = driver_of(changed)
    assert (
        driver["image"].rpartition(":")[2].split("-")[0]
        in spec_of(changed)["template"]["metadata"]["annotations"]["driver-config-digest"]
    ), "another image is another digest"
    assert "sample-driver" not in str(driver), "no command of the sample is left"
    told, profile = env(driver), builtin()[overlay]
    assert (told["DRIVER_ROOT"], told["STATE_FILE"]) == (profile.paths.driver_root, profile.paths.state_file)


def test_nvidias_tag_and_version_are_one() -> None:
    driver = driver_of(render_example("nvidia-driver"))
    assert driver["image"].startswith(f"nvcr.io/nvidia/driver:{env(driver)['DRIVER_VERSION']}-")
    assert builtin()["nvidia"].container_unloads, "so a node is cleared before its pod is deleted"


def test_a_kernels_daemon_set_selects_its_own_nodes_and_its_own_pods() -> None:
    spec = spec_of(render_example("rebellions-one-kernel"))
    template = spec["template"]
    assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    own = spec["selector"]["matchLabels"].items() - spec_of(render("rebellions"))["selector"]["matchLabels"].items()
    assert [value for _, value in own] == [KERNEL]
    assert template["spec"]["nodeSelector"] == {
        "rebellions.ai/npu.deploy.driver": "true",
        "feature.node.kubernetes.io/kernel-version.full": KERNEL,
    }
    only(render_example("rebellions-one-kernel"), "DaemonSet", f"linux-{KERNEL.replace('.', '-')}-rebellions-driver")


def test_what_the_entry_programs_share_is_written_once() -> None:
    programs = [ROOT / "images" / kind / kind for kind in ("sample-driver", "rebellions-driver", "ascend-driver")]
    shared = set(re.findall(r"^(\w+)\(\) \{", SHARED.read_text(), re.MULTILINE))
    for path in programs:
        text = path.read_text()
        assert "common/driver-container.sh" in text
        assert not shared & set(re.findall(r"^(\w+)\(\) \{", text, re.MULTILINE)), path.name
