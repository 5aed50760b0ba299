"""A stand-in `npu-smi` as a real program: prints a real table, or misbehaves as a file beside it states."""

from __future__ import annotations

from pathlib import Path

GOLDEN = Path(__file__).parents[2] / "unit/golden/npu-smi"
HEALTHY = (GOLDEN / "910b-four-cards.txt").read_text()
ADDRESSES = ("0000:c1:00.0", "0000:01:00.0", "0000:c2:00.0", "0000:02:00.0")

SCRIPT = """#!/bin/sh
# Every start is noted, then the mood decides.
echo "$$" >> "{folder}/starts"
. "{folder}/mood"
"""

MOODS = {
    "healthy": 'cat "$FOLDER/table"',
    "critical": "sed '0,/| OK      /s//| Critical/' \"$FOLDER/table\"",
    "hang": "sleep 300",
    "hang ignoring TERM": "trap '' TERM; sleep 300 & echo $! >> \"$FOLDER/children\"; wait; sleep 300",
    "hang with children": 'for i in 1 2 3; do sleep 300 & echo $! >> "$FOLDER/children"; done; wait',
    "leaves children": 'sleep 300 & echo $! >> "$FOLDER/children"; cat "$FOLDER/table"',
    "huge": "exec cat /dev/zero",
    "huge error": "exec cat /dev/zero >&2",
    "garbage": "head -c 5000 /dev/urandom",
    "busy": "echo 'dcmi model initialized failed, because the device is used. ret is -8020'; exit 172",
    "dead": "echo 'dcmi module initialize failed. ret is -8005'; exit 187",
    "crash": "kill -SEGV $$",
    "killed": "kill -KILL $$",
}


class StandIn:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "table").write_text(HEALTHY)
        self.path = folder / "npu-smi"
        self.path.write_text(SCRIPT.format(folder=folder))
        self.path.chmod(0o755)
        self.be("healthy")

    def be(self, mood: str) -> None:
        fresh = self.folder / "mood.new"
        fresh.write_text(f'FOLDER="{self.folder}"\n{MOODS[mood]}\n')
        fresh.replace(self.folder / "mood")

    @property
    def starts(self) -> list[int]:
        path = self.folder / "starts"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    @property
    def children(self) -> list[int]:
        path = self.folder / "children"
        return [int(line) for line in path.read_text().split()] if path.exists() else []
