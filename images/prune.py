"""Takes out of a site-packages folder what images/left-out.txt names: `prune.py <site-packages> [<where to put it>]`.

Standard library only: it runs while the image is built, before and without this project's package.
"""

from __future__ import annotations

import csv
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

LIST = Path(__file__).with_name("left-out.txt")


def patterns(text: str) -> list[str]:
    """The patterns in the list, without comments and empty lines."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def prune(site_packages: Path, wanted: Iterable[str], aside: Path | None = None) -> list[Path]:
    """Remove what the patterns find, or move it to the folder `aside`; the paths that were removed.

    Raises ValueError for a pattern that finds nothing.
    """
    removed: list[Path] = []
    for pattern in wanted:
        found = sorted(site_packages.glob(pattern))
        if not found:
            raise ValueError(f"{pattern} finds nothing in {site_packages}")
        for path in found:
            if aside is not None:
                (aside / path.relative_to(site_packages)).parent.mkdir(parents=True, exist_ok=True)
                path.rename(aside / path.relative_to(site_packages))
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        removed += found
    for record in sorted(site_packages.glob("*.dist-info/RECORD")):
        _forget_removed(record)
    return removed


def _forget_removed(record: Path) -> None:
    """Drop the removed files from a distribution's RECORD, which scanners and pip read."""
    with record.open(newline="") as file:
        rows = list(csv.reader(file))
    kept = [row for row in rows if (record.parents[1] / row[0]).exists()]
    if kept != rows:
        with record.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(kept)


if __name__ == "__main__":
    try:
        gone = prune(Path(sys.argv[1]), patterns(LIST.read_text()), *map(Path, sys.argv[2:3]))
    except ValueError as error:
        sys.exit(f"prune: {error}")
    print(f"prune: {len(gone)} folders and files left out")
