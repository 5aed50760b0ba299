"""What the pages point to exists: links, answers, functions of the walkthrough, tests, actions, the version."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from driver_manager.domain.profile import RecoveryStep
from driver_manager.profiles import builtin
from tests.support.docs.console import PAGES, commands
from tests.support.docs.markdown import DOCS, FENCED, ROOT, anchors
from tests.support.node.measured import Action, recorded

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
README = (ROOT / "README.md").read_text(encoding="utf-8")
README_LINES = 200
WORDS = {"concepts.md": 2_000, "glossary.md": 700, "operate.md": 4_000, "upgrade-walkthrough.md": 600, "window.md": 800}
ANSWERS = ("- **Looks like:** ", "- **Why:** ", "- **Do:** ")
ESCALATE = "- **Escalate:** "
PACKAGE, TESTS = ROOT / "driver_manager", ROOT / "tests"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def broken(page: Path) -> Iterator[str]:
    """The links of `page` that lead nowhere; those to other hosts are not followed."""
    for link in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        exists = target.exists() and (not anchor or anchor in anchors(target.read_text(encoding="utf-8")))
        if not exists and not re.match(r"[a-z]+:", link):
            yield link


def test_every_link_leads_somewhere_and_one_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
    assert {page.name: links for page in pages if (links := list(broken(page)))} == {}
    page = tmp_path / "page.md"
    page.write_text("# A head, or two\n[a](#a-head-or-two) [b](#b) [c](c.md) [d](page.md#b) [e](https://a.example/x)\n")
    assert list(broken(page)) == ["#b", "c.md", "page.md#b"]


def test_the_readme_is_short_and_links_every_page_and_pages_keep_their_limits_of_words() -> None:
    assert len(README.splitlines()) <= README_LINES
    linked = {link.partition("#")[0] for link in LINK.findall(README)}
    assert {f"docs/{page.name}" for page in PAGES if page.parent == DOCS} <= linked
    counts = {page: len((DOCS / page).read_text(encoding="utf-8").split()) for page in WORDS}
    assert {page: count for page, count in counts.items() if count > WORDS[page]} == {}


def test_the_table_of_recoveries_has_the_steps_and_the_reset_of_each_profile() -> None:
    text = (DOCS / "recovery.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| (\w+) \| (.+?) \| (yes|no) \| (yes|no) \| .+ \|$", text, re.MULTILINE)
    rows, wanted = {name: tuple(row) for name, *row in found}, {}
    for name, profile in builtin().items():
        reset, probe = profile.reset, profile.probe
        tool = (reset.tool if reset is not None else "") or (probe.tool if probe is not None else "")
        command = f"`{' '.join((tool, *reset.args))}`" if reset is not None else "no"
        wanted[name] = (command, *("yes" if step in profile.recovery else "no" for step in tuple(RecoveryStep)[1:]))
    assert rows == wanted


def test_every_command_of_the_runbook_is_for_each_vendor() -> None:
    texts = [one.text for one in commands(DOCS / "operate.md")]
    assert [(name, text) for name in builtin() for text in texts if builtin()[name].namespace in text] == []


def test_every_symptom_says_what_it_looks_like_why_and_what_to_do() -> None:
    sections = re.split(r"^### ", (DOCS / "operate.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    own = {section.splitlines()[0]: section.partition("\n## ")[0] for section in sections}
    assert len(own) >= 25
    assert [name for name, section in own.items() if not all(answer in section for answer in ANSWERS)] == []
    assert [name for name, section in own.items() if name.startswith("Alert ") and ESCALATE not in section] == []


def names_in(file: Path) -> Iterator[str]:
    """Functions, classes and methods (`Class.method`) of a module."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
            inner = node.body if isinstance(node, ast.ClassDef) else ()
            yield from (f"{node.name}.{one.name}" for one in inner if isinstance(one, ast.FunctionDef))


def test_every_function_class_and_file_of_the_walkthrough_exists() -> None:
    text = (DOCS / "upgrade-walkthrough.md").read_text(encoding="utf-8")
    stops = re.findall(r"^\| (?:(\d+) \| )?`([\w/.]+)` \| `([\w.]+)` \|", text, re.MULTILINE)
    numbers = [int(number) for number, _, _ in stops if number]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 10 < len(numbers) <= 25
    assert [(file, name) for _, file, name in stops if name not in names_in(PACKAGE / file)] == []
    assert [path for path in re.findall(r"`([a-z_]+/[\w/]+\.py)`", text) if not (PACKAGE / path).is_file()] == []
    named = set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+(?:\.\w+)?)`", text))
    assert named
    assert named <= {name for file in PACKAGE.rglob("*.py") for name in names_in(file)}


def test_a_recipe_names_files_that_exist_and_names_that_they_define() -> None:
    text = (DOCS / "contributing.md").read_text(encoding="utf-8").partition("## How to add")[2].partition("\n## ")[0]
    recipes = re.findall(r"^\*\*A (probe format|setting|field|step)\b(.*?)(?=^\*\*A)", text, re.MULTILINE | re.DOTALL)
    assert len(recipes) == 4
    for _, recipe in recipes:
        found = [ROOT / path for path in re.findall(r"`((?:driver_manager|tests|scripts|deploy)/[\w./-]+)`", recipe)]
        assert [str(path) for path in found if not path.exists()] == []
        code = "\n".join(path.read_text(encoding="utf-8") for path in found if path.suffix == ".py")
        names = re.findall(r"`([A-Za-z_]+)(?:\(\))?`", recipe)
        defined = r"(def|class) {0}\b|\b{0}\b\"?(: .*)? = |\b{0}:"
        assert [one for one in names if not re.search(defined.format(one), code)] == []


def test_every_test_that_the_threat_model_names_exists() -> None:
    text = (DOCS / "threat-model.md").read_text()
    named = set(re.findall(r"`(?:tests/\S+/)?(test_\w+\.py)`", text))
    assert len(named) > 8
    assert named <= {path.name for path in TESTS.rglob("test_*.py")}
    for path in ("tests/assurance/fuzz", "scripts/fuzz"):
        assert (f"`{path}`" in text, (ROOT / path).exists()) == (True, True)


def test_the_node_tiers_table_has_every_action_and_each_is_measured_by_one_test() -> None:
    assert [one["action"] for one in recorded()["rows"]] == [action.value for action in Action]
    files = (TESTS / "system/node").glob("*.py")
    used = [name for path in files for name in re.findall(r"Action\.(\w+)", path.read_text())]
    assert sorted(used) == sorted(action.name for action in Action)


def test_the_version_is_declared_once_and_command_changelog_and_image_have_it() -> None:
    argv = [sys.executable, "-m", "driver_manager", "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == f"driver-manager, version {VERSION}\n"
    assert [path for path in PACKAGE.rglob("*.py") if "__version__" in path.read_text()] == []
    head = re.compile(r"^## \[(.+?)\] - (\d{4}-\d{2}-\d{2}|unreleased)$", re.MULTILINE)
    (first, _), *earlier = head.findall((ROOT / "CHANGELOG.md").read_text())
    assert first == VERSION
    assert "unreleased" not in [date for _, date in earlier]
    (line,) = re.findall(r"^version=.*", (ROOT / "scripts/image").read_text(), re.MULTILINE)
    shell = ["sh", "-c", f"{line}; echo $version"]
    found = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == f"{VERSION}\n"
    recipe = (ROOT / "Containerfile").read_text()
    assert "VERSION=" in recipe
    lines = re.findall(r"^(?:ARG|LABEL).*", recipe, re.MULTILINE)
    assert [line for line in lines if re.search(r"\b\d+\.\d+\.\d+\b", line)] == []
