"""A pytest plugin that keeps the passes of dear checks over files: `@pytest.mark.reads(*paths, tools=(...))`.

`paths` are the files and folders of the checkout that the check reads, `tools` the programs that it starts. Their
content and versions make the key of a pass, with all modules of the checkout that the test module imports, the packages
that are installed, and Python. While the key is the same, the check counts as passed without a run, except with
`--run release`. Nothing else is kept: a failure and a skip run again.

A check that opens or lists something else in the checkout, or starts another program, fails. What a program reads that
the check starts cannot be seen, and has to be named as well.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.support import cache as shared
from tests.support.imports import imported

CHECKOUT = Path(__file__).parents[2]
MADE = {".venv", ".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "build", "__pycache__"}
"""Folders with what is made from other things, which are among the inputs where they matter."""

ALWAYS = ("pyproject.toml",)
KEPT_S = 30 * 24 * 3600.0
READ_EVENTS = {"open", "os.listdir", "os.scandir"}
START_EVENTS = {"subprocess.Popen", "os.posix_spawn", "os.exec"}


class UndeclaredInput(Exception):
    """A check reads what its key does not have; the message names it."""


def passes() -> Path:
    return shared.folder() / "passes"


class Inputs:
    """What a check of a test module reads."""

    def __init__(self, module: Path, paths: Iterable[str], tools: Iterable[str], root: Path = CHECKOUT) -> None:
        self.root, self.tools = root, set(tools)
        self.named = [root / path for path in (*ALWAYS, *paths)]
        above = [folder / "conftest.py" for folder in module.parents if folder.is_relative_to(root)]
        self.sources = set(self._imported([module, *filter(Path.is_file, above)]))

    def key(self, name: str) -> str:
        content = hashlib.sha256()
        files = {file for path in self.named for file in _files(path)} | self.sources
        told = [name, sys.version, *_installed(), *map(_version, sorted(self.tools))]
        for word in (*told, *(f"{file.relative_to(self.root)} {_digest(file)}" for file in sorted(files))):
            content.update(f"{word}\n".encode())
        return content.hexdigest()

    def has(self, path: Path) -> bool:
        if not path.is_relative_to(self.root) or MADE & {*path.relative_to(self.root).parts}:
            return True
        return path in self.sources or any(path.is_relative_to(one) for one in self.named)

    def _imported(self, modules: list[Path]) -> Iterator[Path]:
        """These and all that they import of the checkout; where a folder is named, it is not looked into again."""
        seen = set[Path]()
        while modules:
            file = modules.pop()
            if file in seen:
                continue
            seen.add(file)
            yield file
            if not any(file.is_relative_to(one) for one in self.named):
                modules += [found for name in _imports(*_version_of(file)) for found in self._found(name)]

    def _found(self, name: str) -> Iterator[Path]:
        base = self.root.joinpath(*name.split("."))
        for file in (base.with_suffix(".py"), *(folder / "__init__.py" for folder in (base, *base.parents))):
            if file.is_relative_to(self.root) and file.is_file():
                yield file


class Seen:
    """What this process reads and starts: `now` since it was emptied, and `early` by module while that was imported."""

    def __init__(self) -> None:
        self.now: set[tuple[str, str]] = set()
        self.early: dict[str, set[tuple[str, str]]] = {}
        self.is_testing = False
        self.is_looking = True
        self._root = f"{CHECKOUT}/"
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_looking:
            return
        if event in START_EVENTS:
            self._add(("start", os.fsdecode(arguments[0] or arguments[1][0])))
        elif event in READ_EVENTS and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.abspath(os.fsdecode(arguments[0]))  # noqa: PTH100  # links keep their names
            is_written = event == "open" and bool((arguments[2] or 0) & os.O_ACCMODE)
            if path.startswith(self._root) and not is_written:
                # The import system lists folders for itself. It reads a module or what was compiled from it.
                is_import = "importlib" in sys._getframe(1).f_code.co_filename
                if not (is_import and event != "open"):
                    folder, _, name = path.rpartition("/__pycache__/")  # the file that a compiled module was made from
                    self._add(("read", f"{folder}/{name.partition('.')[0]}.py" if folder else path))

    def _add(self, what: tuple[str, str]) -> None:
        if self.is_testing:
            self.now.add(what)
            return
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(self._root):
                self.early.setdefault(frame.f_code.co_filename, set()).add(what)
            frame = frame.f_back

    def lacking(self, inputs: Inputs) -> list[str]:
        """What was read or started now, or when the modules were imported, and is not among the inputs."""
        early = (self.early.get(str(file), set()) for file in inputs.sources)
        found = self.now.union(*early)
        return sorted(f"{how} {what.removeprefix(self._root)}" for how, what in found if not _is_in(inputs, how, what))


class Unchanged(pytest.Item):
    def runtest(self) -> None:
        print(f"{self.name}: passed before with the same inputs")

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


class Verdicts:
    """Replaces checks whose pass is kept, and keeps the passes of those that run."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._inputs: Inputs | None = None
        self._key = ""
        self._has_passed = False

    def pytest_unconfigure(self) -> None:
        """Stop: what the interpreter reads while it ends belongs to no test, and this module may be cleared by then."""
        self._seen.is_looking = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Look no further where no check is collected: each file that is opened would cost some microseconds."""
        self._seen.is_looking = any(inputs_of(item) for item in session.items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Keep the pass, unless the files were edited meanwhile."""
        self._inputs = inputs_of(item)
        if self._inputs is None:
            return (yield)
        self._key, self._has_passed = self._inputs.key(item.nodeid), True
        self._seen.now, self._seen.is_testing = set(), True
        try:
            done = yield
        finally:
            self._seen.is_testing = False
        if self._has_passed and self._inputs.key(item.nodeid) == self._key:
            keep(self._key)
        return done

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        """Fail a check whose key lacks an input. Raises UndeclaredInput."""
        yield
        if self._inputs is not None and (lacking := self._seen.lacking(self._inputs)):
            raise UndeclaredInput(f"name in @pytest.mark.reads: {', '.join(lacking)}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self._has_passed = self._has_passed and report.passed
        return report


def unchanged(items: list[pytest.Item]) -> list[pytest.Item]:
    return [_unchanged(item) if is_kept(item) else item for item in items]


def is_kept(item: pytest.Item) -> bool:
    inputs = inputs_of(item)
    if inputs is None:
        return False
    try:
        os.utime(passes() / inputs.key(item.nodeid))
    except FileNotFoundError:
        return False
    return True


def keep(key: str) -> None:
    """Keep a pass, and forget those that were not used for long."""
    kept = passes()
    try:
        kept.mkdir(parents=True, exist_ok=True)
        (kept / key).touch()
        old = [file for file in kept.iterdir() if file.stat().st_mtime < time.time() - KEPT_S]
        for file in old:
            file.unlink()
    except OSError:
        return  # a pass is kept where it can be


def inputs_of(item: pytest.Item) -> Inputs | None:
    marker = item.get_closest_marker("reads")
    if marker is None or isinstance(item, Unchanged):
        return None
    return _inputs_of(item.path, marker.args, tuple(marker.kwargs.get("tools", ())))


_inputs_of = cache(Inputs)


def _unchanged(item: pytest.Item) -> pytest.Item:
    assert item.parent is not None
    made: pytest.Item = Unchanged.from_parent(item.parent, name=item.name)
    made.own_markers = item.own_markers
    return made


def _is_in(inputs: Inputs, how: str, what: str) -> bool:
    if how == "read":
        return inputs.has(Path(what))
    # A program of the checkout is a file among others.
    return what == sys.executable or Path(what).name in inputs.tools or (what[0] == "/" and inputs.has(Path(what)))


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for entry in os.scandir(path):
        if entry.name not in MADE:
            yield from _files(Path(entry.path)) if entry.is_dir() else [Path(entry.path)]


def _version_of(file: Path) -> tuple[Path, int, int]:
    """What tells the versions of a file apart while a process runs."""
    stat = file.stat()
    return file, stat.st_mtime_ns, stat.st_size


def _digest(file: Path) -> str:
    return f"{file.stat().st_mode & 0o111} {_content(*_version_of(file))}"


@cache
def _content(file: Path, mtime_ns: int, size: int) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@cache
def _imports(file: Path, mtime_ns: int, size: int) -> frozenset[str]:
    return frozenset(imported(file.read_text()))


def _version(tool: str) -> str:
    """The file that a tool's name means and its version: no tool changes without its size or time."""
    found = shutil.which(tool)
    if found is None:
        return f"{tool}: none"
    file, mtime_ns, size = _version_of(Path(found).resolve())
    return f"{tool}: {file} {mtime_ns} {size}"


@cache
def _installed() -> list[str]:
    return sorted(path.name for path in Path(pytest.__file__).parents[1].iterdir())
