"""`scripts/site`: builds the site of README.md and docs/ in build/site, of which nothing leads outside by itself."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.docs.console import PAGES
from tests.support.docs.markdown import FENCED, ROOT

HERE = Path(__file__).parent
BUILD = ROOT / "build/site"
CONFIG = "zensical.toml"

MERMAID = "@mermaid-js/tiny@12.0.0"
"""The mermaid of the site, by name and version on npm: its small build, of the major version that the theme takes."""

INTEGRITY = "sha512-ZW9YXy+3tSLPscBT+NnQO0K0qYH7BGES5nExl6Snoygey7xd2N0cO7Nq30N5k/u7gIeYoCrldyVy+VTCMWrNDQ=="
"""The hash of its package, as npm gives it."""

SCRIPT = "package/dist/mermaid.tiny.js"
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|object|embed)\b[^>]*?\b(?:src|data)=["']?(?P<src>[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*rel=["']?(?:stylesheet|preconnect|preload|icon))[^>]*?href=["']?(?P<href>[^"'\s>]+)"""
)


class SiteError(Exception):
    """The site cannot be built as it is; the text is for people."""


def linked(page: Path, text: str) -> str:
    """The text of a page with its links as they are in the site; what is not in the site is named without a link."""
    names = {one.resolve(): "index.md" if one.parent == ROOT else one.name for one in PAGES}

    def replaced(found: re.Match[str]) -> str:
        label, target = found.groups()
        path, sharp, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target) or not path:
            return found[0]
        meant = (page.parent / path).resolve()
        if meant in names:
            return f"[{label}]({names[meant]}{sharp}{anchor})"
        return label if meant.exists() else found[0]

    parts, at = [], 0
    for fence in FENCED.finditer(text):
        parts += [LINK.sub(replaced, text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, LINK.sub(replaced, text[at:])])


def listed(nav: Any) -> list[str]:
    inner = nav.values() if isinstance(nav, Mapping) else nav
    return [nav] if isinstance(nav, str) else [page for one in inner for page in listed(one)]


def mermaid(folder: Path) -> bytes:
    """The script, from the package that npm has; kept in `folder`. Raises SiteError."""
    kept = folder / f"{MERMAID.replace('/', '-')}.tgz"
    if not kept.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as fresh:
            output = _ran("npm", "pack", "--silent", "--pack-destination", fresh, MERMAID)
            Path(fresh, output.split()[-1]).replace(kept)
    digest = base64.b64encode(hashlib.sha512(kept.read_bytes()).digest())
    if f"sha512-{digest.decode()}" != INTEGRITY:
        kept.unlink()
        raise SiteError(f"{MERMAID} is not what was pinned: its hash is another one")
    with tarfile.open(kept) as package:
        script = package.extractfile(SCRIPT)
        assert script is not None
        return script.read()


def _ran(*argv: str) -> str:
    """What a program printed. Raises SiteError where it does not end well."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SiteError(f"{argv[0]} cannot be run: {error}") from error
    if done.returncode:
        raise SiteError(re.sub(r"\x1b\[[\d;]*m", "", f"{argv[0]}: {done.stdout}{done.stderr}"))
    return done.stdout


def outside(page: str) -> list[str]:
    """What a browser that shows the page would ask of other hosts."""
    found = [one["src"] or one["href"] for one in LOADED.finditer(page)]
    return [one for one in found if re.match(r"(?:[a-z]+:)?//", one)]


def stage(folder: Path, pages: Mapping[Path, str]) -> None:
    """Write the sources of the site into `folder`. Raises SiteError."""
    config = (HERE / CONFIG).read_text(encoding="utf-8")
    names = {page: "index.md" if page.parent == ROOT else page.name for page in pages}
    if found := sorted(set(names.values()) ^ set(listed(tomllib.loads(config)["project"]["nav"]))):
        raise SiteError(f"{', '.join(found)}: in the navigation of {CONFIG} or among the pages, but not in both")
    for source, to in (("overrides", "overrides"), ("assets", "pages")):
        shutil.rmtree(folder / to, ignore_errors=True)
        shutil.copytree(HERE / source, folder / to)
    (folder / CONFIG).write_text(config, encoding="utf-8")
    for page, text in pages.items():
        (folder / "pages" / names[page]).write_text(linked(page, text), encoding="utf-8")
    (folder / "pages/mermaid.js").write_bytes(mermaid(BUILD / "npm"))


def build(folder: Path, pages: Mapping[Path, str] | None = None) -> Path:
    """The folder of the finished site. Raises SiteError for a link that leads nowhere, and for a wrong picture."""
    stage(folder, pages or {page: page.read_text(encoding="utf-8") for page in PAGES})
    sources = [str(page) for page in sorted((folder / "pages").glob("*.md"))]
    _ran("node", str(HERE / "pictures.cjs"), str(folder / "pages/mermaid.js"), *sources)
    _ran(sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", str(folder / CONFIG))
    html = folder / "html"
    asked = {page.name: asks for page in html.glob("*.html") if (asks := outside(page.read_text(encoding="utf-8")))}
    if asked:
        raise SiteError(f"the site would ask other hosts: {asked}")
    return html


def main() -> int:
    if sys.argv[1:]:
        print("usage: scripts/site    (builds build/site/html from README.md and docs/; takes no arguments)")
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    try:
        print(f"site: {(build(BUILD) / 'index.html').relative_to(ROOT)}")
    except SiteError as error:
        print(f"site: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
