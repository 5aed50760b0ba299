"""What the built image consists of: size, user, files, what is not in it, and that it comes out the same again."""

from __future__ import annotations

import importlib.util
import json
import stat
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from images import prune, sbom
from tests.support.image import builder
from tests.support.image.bom_form import refuse_malformed

MAX_BYTES_OVER_BASE = 150 * 1024 * 1024
TREE = "opt/driver-manager"
UNCHECKED_HASH = 0b01  # the flags of a .pyc that is used without a look at its source (PEP 552)
PROJECT = tomllib.loads((builder.CHECKOUT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="session")
def base() -> builder.Image:
    return builder.Image(builder.BASE, 0.0)


def _files(root: Path) -> Iterator[Path]:
    return (path for path in root.rglob("*") if not path.is_symlink() and path.is_file())


def _special(root: Path) -> set[tuple[str, int]]:
    """The files below `root` that give rights: setuid and setgid, with their modes."""
    return {
        (path.relative_to(root).as_posix(), mode)
        for path in _files(root)
        if (mode := path.stat().st_mode) & (stat.S_ISUID | stat.S_ISGID)
    }


def test_it_is_small_over_its_base(image: builder.Image, base: builder.Image) -> None:
    layers = image.layers()
    assert list(layers)[:1] == list(base.layers())
    own = sum(layers.values()) - sum(base.layers().values())
    print(f"{own / 1024 / 1024:.1f} MiB over the base, in {len(layers) - 1} layers")
    assert own <= MAX_BYTES_OVER_BASE


def test_it_runs_as_root_starts_the_program_and_has_the_packages_labels(
    image: builder.Image, container: builder.Container
) -> None:
    config = image.inspect()["config"]
    assert (config["User"], config["Entrypoint"], config["Cmd"]) == ("0:0", ["driver-manager"], ["--help"])
    assert config["Env"] == ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    given = {key.removeprefix("org.opencontainers.image."): value for key, value in config["Labels"].items()}
    expected = {"title": PROJECT["name"], "version": PROJECT["version"], "licenses": PROJECT["license"]}
    assert expected.items() <= given.items()
    assert PROJECT["description"].startswith(given["description"])
    assert container.run("driver-manager", "--version").out == f"driver-manager, version {PROJECT['version']}\n"


def test_no_compiler_no_pip_no_cache_and_no_log_is_in_it(root: Path) -> None:
    names = {path.name for path in (*root.glob("usr/*bin/*"), *root.glob(f"{TREE}/bin/*"))}
    assert not {name for name in names if name.startswith(("pip", "gcc", "cc", "g++", "clang", "make", "x86_64-"))}
    assert {"modprobe", "rmmod", "insmod", "depmod", "nsenter"} <= names
    assert {path.name for path in root.glob(f"{TREE}/bin/*")} == {"driver-manager", "python", "python3", "python3.11"}
    folders = ("usr/lib/python3*/*", f"{TREE}/lib/python3*/site-packages/*")
    packages = {path.name for folder in folders for path in root.glob(folder)}
    assert not packages & {"pip", "setuptools", "wheel", "ensurepip", "pytest"}
    for empty in ("var/lib/apt/lists", "var/cache/apt"):
        assert list(_files(root / empty)) == []
    assert {path.name for path in _files(root / "var/log")} <= {"bootstrap.log", "faillog", "lastlog", "btmp", "wtmp"}


def test_no_file_gives_rights_that_its_base_does_not_give_and_no_mount_point_is_left(
    root: Path, base: builder.Image
) -> None:
    assert _special(root) == _special(base.root())
    assert {path.name for path in root.iterdir()} == {path.name for path in base.root().iterdir()}


def test_what_is_left_out_is_not_in_it_and_the_licence_is(root: Path) -> None:
    (site_packages,) = root.glob(f"{TREE}/lib/python3*/site-packages")
    wanted = prune.patterns(prune.LIST.read_text())
    assert [pattern for pattern in wanted if list(site_packages.glob(pattern))] == []
    assert (site_packages / "kubernetes/config/kube_config.py").exists()
    (found,) = site_packages.glob("driver_manager-*.dist-info/licenses/LICENSE")
    assert found.read_bytes() == (builder.CHECKOUT / "LICENSE").read_bytes()


@pytest.mark.parametrize("folder", [TREE, "usr/lib/python3.11"])
def test_every_module_is_compiled_and_its_source_is_not_asked(root: Path, folder: str) -> None:
    sources = [path for path in _files(root / folder) if path.suffix == ".py"]
    assert len(sources) > 500
    for path in sources:
        compiled = Path(importlib.util.cache_from_source(str(path)))
        assert compiled.exists(), path
        assert int.from_bytes(compiled.read_bytes()[4:8], "little") == UNCHECKED_HASH, path


def test_its_bill_of_materials_names_what_is_in_it(root: Path) -> None:
    found = json.loads((root / "usr/share/sbom/driver-manager.cdx.json").read_text())
    refuse_malformed(found)
    assert found == sbom.bill(root, builder.CHECKOUT / "requirements", int(builder.EPOCH))
    names = [component["purl"].partition("@")[0] for component in found["components"]]
    assert {"pkg:deb/debian/kmod", "pkg:deb/debian/python3.11", "pkg:deb/debian/libudev1", "pkg:pypi/click"} <= set(
        names
    )
    installed = list(root.glob(f"{TREE}/lib/python3*/site-packages/*.dist-info"))
    assert len([name for name in names if name.startswith("pkg:pypi/")]) == len(installed) - 1


def test_public_authorities_are_where_programs_look_for_them(root: Path, container: builder.Container) -> None:
    (bundle,) = root.glob(f"{TREE}/lib/python3*/site-packages/certifi/cacert.pem")
    assert (root / "etc/ssl/certs/ca-certificates.crt").readlink() == Path("/") / bundle.relative_to(root)
    assert (root / "usr/lib/ssl/cert.pem").readlink() == Path("/etc/ssl/certs/ca-certificates.crt")
    code = "import ssl; print(len(ssl.create_default_context().get_ca_certs()))"
    done = container.run(f"/{TREE}/bin/python3", "-c", code)
    assert int(done.out) > 100, done.err


@pytest.fixture(scope="module")
def first(image: builder.Image) -> Iterator[builder.Image]:
    """Built as a whole: `image` may have Debian's packages of some days ago from the cache."""
    builder.remove_dependencies()  # a build's history has the name of an image that is equal to one of its stages
    made = builder.build(f"{builder.TAG}-first:test")
    yield made
    builder.remove(made)


@pytest.fixture(scope="module")
def again(first: builder.Image) -> Iterator[builder.Image]:
    made = builder.build(f"{builder.TAG}-again:test")
    yield made
    builder.remove(made)


@pytest.fixture
def in_parts(again: builder.Image) -> Iterator[builder.Image]:
    """The same built in two parts, as `image` is."""
    below = f"{builder.DEPENDENCIES}:test"
    builder.build_dependencies(below)
    made = builder.build(f"{builder.TAG}-in-parts:test", below)
    yield made
    builder.remove(made)
    builder.remove_dependencies()


@pytest.mark.release
def test_a_second_build_gives_the_same_layers(
    first: builder.Image, again: builder.Image, in_parts: builder.Image
) -> None:
    assert list(again.layers()) == list(first.layers()) == list(in_parts.layers())
    assert again.inspect()["created"] == first.inspect()["created"] == in_parts.inspect()["created"]


@pytest.mark.release
def test_a_release_with_images_of_two_builds_is_the_same_to_the_byte(
    first: builder.Image, again: builder.Image, tmp_path: Path
) -> None:
    archive = f"driver-manager-{PROJECT['version']}-amd64.oci.tar"
    for name, one in (("first", first), ("second", again)):
        words = [sys.executable, "-m", "scripts.releasing.folder", f"--image=amd64={one.name}", str(tmp_path / name)]
        assert archive in builder.checked(words, builder.BUILD_TIMEOUT_S)
    sums = [(tmp_path / name / "SHA256SUMS").read_text() for name in ("first", "second")]
    assert sums[0] == sums[1]
    for name in ("first", "second"):
        builder.checked(["sha256sum", "--check", "--strict", "SHA256SUMS"], builder.RUN_TIMEOUT_S, tmp_path / name)
    found = json.loads((tmp_path / f"first/{archive.replace('.oci.tar', '.cdx.json')}").read_text())
    with first.container() as made:
        assert found == json.loads((made.root() / "usr/share/sbom/driver-manager.cdx.json").read_text())
    # What a registry would have of it is what was built.
    with tarfile.open(tmp_path / "first" / archive) as tar:
        (manifest,) = json.load(_member(tar, "index.json"))["manifests"]
        assert manifest["annotations"]["org.opencontainers.image.ref.name"] == f"driver-manager:{PROJECT['version']}"
        config = json.load(_member(tar, _blob(manifest)))["config"]
        assert json.load(_member(tar, _blob(config)))["rootfs"]["diff_ids"] == list(first.layers())


def _blob(descriptor: dict[str, str]) -> str:
    return f"blobs/{descriptor['digest'].replace(':', '/')}"


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    found = tar.extractfile(name)
    assert found is not None, name
    return found


def test_the_locks_have_wheels_for_arm64_and_nothing_in_the_build_names_an_architecture() -> None:
    done = builder.run(["scripts/image", "--arch", "arm64", "--wheels-only"], timeout_s=120)
    assert done.status == 0, done.err
    wheels = [path.name for path in (builder.FOLDER / "wheels-arm64").iterdir()]
    assert len(wheels) > 30
    assert [name for name in wheels if not name.endswith(("-none-any.whl", "_aarch64.whl"))] == []
    text = (builder.CHECKOUT / "Containerfile").read_text().replace("wheels-amd64", "")
    assert not [word for word in ("amd64", "x86", "aarch64", "arm64") if word in text]
