"""A release folder: complete, the same again, and what a user gets from it is what the repository says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
import yaml

from scripts.releasing import chart, folder
from scripts.releasing.kustomize import NAMESPACES, OVERLAYS, POLICIES, ROLLOUTS, render
from tests.support.deploy.helm import started
from tests.support.deploy.meaning import meaning

pytestmark = pytest.mark.shares(3)

EPOCH = 1_700_000_000
VERSION = folder.version()
CHECKOUT = Path(__file__).parents[2]


def made(into: Path) -> Path:
    into.mkdir()
    folder.make(into, {}, EPOCH)
    return into


def contents(release: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in release.iterdir()}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("made") / "release")


@pytest.mark.submission
def test_a_release_made_twice_is_the_same_to_the_byte(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another checkout, made at another time by a user with another umask.
    shutil.copytree(chart.CHART, tmp_path / "chart", copy_function=shutil.copy)
    for path in tmp_path.joinpath("chart").rglob("*"):
        path.chmod(0o700)
        os.utime(path, (time.time() - 1e6,) * 2)
    monkeypatch.setattr(chart, "CHART", tmp_path / "chart")
    old = os.umask(0o077)
    try:
        assert contents(made(tmp_path / "second")) == contents(release)
    finally:
        os.umask(old)


@pytest.mark.submission
def test_it_has_every_overlay_the_chart_and_the_changes_and_sums_that_hold(release: Path) -> None:
    files = contents(release)
    overlays = {f"{name.replace('/', '-')}.yaml": name for name in (*OVERLAYS, *ROLLOUTS, *NAMESPACES, *POLICIES)}
    others = {f"driver-manager-{VERSION}.tgz", f"driver-manager-{VERSION}.provenance.json", "CHANGES.md", "SHA256SUMS"}
    assert files.keys() == {*overlays, *others}
    for file, overlay in overlays.items():
        assert list(yaml.safe_load_all(files[file])) == render(overlay)
        assert b"&id" not in files[file], "readable, without YAML's anchors"
    words = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    checked = subprocess.run(words, cwd=release, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout.count(": OK")) == (0, len(files) - 1), checked.stderr


@pytest.mark.submission
def test_the_packed_chart_is_the_chart(release: Path) -> None:
    packed = release / f"driver-manager-{VERSION}.tgz"
    values = {"vendor": "rebellions", "rollout": {"enabled": True}}
    with started() as helm:
        assert meaning(helm.render(values, "x", packed)) == meaning(helm.render(values, "x"))
    with tarfile.open(packed) as tar:
        entries = tar.getmembers()
    assert {(one.mtime, one.uid, one.gid, one.mode) for one in entries} == {(EPOCH, 0, 0, 0o644)}
    assert sorted(one.name for one in entries) == [one.name for one in entries]


def test_the_changes_are_those_of_one_version() -> None:
    text = "# Changelog\n\n## [2.0.0] - 2027-01-01\n\n- two\n\n## [1.0.0] - 2026-01-01\n\n- one\n\n[1.0.0]: there\n"
    assert folder.changes(text, "2.0.0") == "## [2.0.0] - 2027-01-01\n\n- two\n"
    assert folder.changes(text, "1.0.0") == "## [1.0.0] - 2026-01-01\n\n- one\n"
    with pytest.raises(folder.ReleaseError, match=r"no section for 1\.0"):
        folder.changes(text, "1.0")


def test_a_chart_that_is_out_of_date_is_not_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(chart.CHART, tmp_path / "chart")
    file = tmp_path / "chart/templates/base.yaml"
    file.write_text(file.read_text().replace("- patch\n", ""))
    monkeypatch.setattr(chart, "CHART", tmp_path / "chart")
    with pytest.raises(folder.ReleaseError, match=r"templates/base\.yaml.*run scripts/chart"):
        made(tmp_path / "release")


@pytest.mark.submission
def test_what_failed_leaves_nothing_and_what_is_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert folder.main(["--image", "amd64=none", str(tmp_path / "release")]) == 1
    assert "release: buildah" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "release").mkdir()
    assert folder.main([str(tmp_path / "release")]) == 1
    assert "is there already" in capsys.readouterr().err


def test_the_script_refuses_what_is_not_committed(tmp_path: Path) -> None:
    for name in ("scripts/release", "scripts/image", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(CHECKOUT / name, tmp_path / name)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    done = subprocess.run([tmp_path / "scripts/release", "--no-images"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "changes that are not committed" in done.stderr


@pytest.mark.submission
def test_the_help_of_the_script_names_every_file_of_a_release(release: Path) -> None:
    help_text = subprocess.run(
        [CHECKOUT / "scripts/release", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for name in contents(release):
        plain = re.sub(r"-(rollout|namespace|admission-policy)\b", "", name).replace(VERSION, "<version>")
        assert plain in help_text, name
        for part in re.findall(r"-(?:rollout|namespace|admission-policy)\b", name):
            assert f"{part} " in help_text, name
