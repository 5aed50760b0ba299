"""The coverage-guided engine: atheris (libFuzzer) on a target, in a process of its own per target.

atheris has wheels for CPython on Linux x86_64 only; `why_not` says so where it is absent. libFuzzer ends its process,
so every target runs in a fork of one that has imported and instrumented the package.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.assurance.fuzz.target import Form, Target, check

MAX_BYTES = 64 * 1024
DEEP = 2_000

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 0.5, -1.5, 1e308, float("nan"), float("inf"),
    "", " ", "true", "false", "\ud800", "\x00", "\x1b[31m", "\u202e", "a\nb", "é", "x" * 70, "/../..", "9" * 30,
    [], {}, [[]], [None], {"": None},
)  # fmt: skip
ODD_WORDS = (
    b"", b"-", b"=", b":", b"/", b"..", b"|", b"+", b"\\", b"\\777", b"\x1b[0m", b"\xff\xfe", b"\xed\xa0\x80", b"0",
    b"-1", b"9" * 30, b"9" * 5_000, b"999999999", b"1e999", b"nan", b"inf", b"[]", b"{}", b'"', b"'", b"\t", b"\r",
    "é".encode(), "١".encode(), "²".encode(),
)  # fmt: skip


def mutated(form: Form, data: bytes, random: Random) -> bytes:
    """`data` with a few changes, at most 64 KiB."""
    for _ in range(random.randint(1, 4)):
        data = CHANGES[form](data, random)
    return data[:MAX_BYTES]


def amplified(data: bytes) -> bytes:
    """`data` again and again, to 64 KiB: what costs more than its length shows here."""
    return (data * (MAX_BYTES // max(1, len(data)) + 1))[:MAX_BYTES]


def _json(data: bytes, random: Random) -> bytes:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return _text(data, random)
    if random.random() < 0.1:
        return _text(data, random)
    if random.random() < 0.02:
        return b"[" * DEEP + b"]" * DEEP
    return json.dumps(_changed(body, random)).encode()


def _changed(body: Any, random: Random) -> Any:
    """`body` with a change at one place, of any depth."""
    if isinstance(body, dict) and body and random.random() < 0.85:
        key = random.choice(sorted(body))
        fate = random.random()
        rest = {name: value for name, value in body.items() if name != key}
        if fate < 0.1:
            return rest
        if fate < 0.15:
            return {**body, str(random.choice(ODD_VALUES)): body[key]}
        return {**body, key: _changed(body[key], random)}
    if isinstance(body, list) and body and random.random() < 0.85:
        at = random.randrange(len(body))
        fate = random.random()
        if fate < 0.1:
            return body[:at] + body[at + 1 :]
        if fate < 0.2:
            return body + [body[at]] * random.choice((1, 40))
        return [*body[:at], _changed(body[at], random), *body[at + 1 :]]
    if isinstance(body, str) and body and random.random() < 0.4:
        at = random.randrange(len(body) + 1)
        return body[:at] + str(random.choice(ODD_VALUES)) + body[at:]
    return random.choice(ODD_VALUES)


def _text(data: bytes, random: Random) -> bytes:
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    fate = random.random()
    if fate < 0.1:
        return b"\n".join(lines[:at] + lines[at + 1 :])
    if fate < 0.2:
        other = random.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif fate < 0.3:
        lines[at:at] = [lines[at]] * random.choice((1, 2, 60))
    elif fate < 0.4:
        return data[: random.randrange(len(data) + 1)]
    elif fate < 0.85:
        lines[at] = _reworded(lines[at], random)
    else:
        return _bytes(data, random)
    return b"\n".join(lines)


def _reworded(line: bytes, random: Random) -> bytes:
    """A word of the line, or a piece of one, gives way to an odd one."""
    words = line.split(b" ")
    at = random.randrange(len(words))
    begin, end, odd = 0, len(words[at]), random.choice(ODD_WORDS)
    if random.random() >= 0.5 and words[at]:
        begin = random.randrange(end)
        end = random.randint(begin, end)
    words[at] = words[at][:begin] + odd + words[at][end:]
    return b" ".join(words)


def _parts(data: bytes, random: Random) -> bytes:
    found = data.split(b"\0")
    at = random.randrange(len(found))
    fate = random.random()
    if fate < 0.1:
        del found[at]
    elif fate < 0.2:
        found.insert(random.randrange(len(found) + 1), found[at])
    elif fate < 0.3 and found[at]:
        found[at] = bytes([random.randint(1, 255)]) + found[at][1:]
    elif found[at]:
        inner = random.choice((_json, _text, _bytes))
        found[at] = found[at][:1] + inner(found[at][1:], random).replace(b"\0", b"?")
    return b"\0".join(found)


def _bytes(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    fate = random.random()
    if fate < 0.3:
        return data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]
    if fate < 0.5:
        return data[:at] + random.choice(ODD_WORDS) + data[at:]
    if fate < 0.7:
        return data[:at] + data[at + random.choice((1, 2, 8, 64)) :]
    if fate < 0.9:
        begin = random.randrange(len(data) + 1)
        return data[:at] + data[begin : begin + random.choice((1, 8, 64, 4096))] + data[at:]
    width = random.choice((2, 4, 8))
    number: int = random.choice((0, 1, 0x7F, 0xFF, 0xFFFF, 2**31, 2**32 - 1)) % 2 ** (8 * width)
    return data[:at] + number.to_bytes(width, "little") + data[at + width :]


CHANGES = {Form.JSON: _json, Form.TEXT: _text, Form.PARTS: _parts, Form.BYTES: _bytes}
FOUND = Path(__file__).parents[3] / "build/fuzz"
HANG_S = 75
RSS_MIB = 1024
GRACE_S = 60.0
_COUNTS = re.compile(r"#(\d+)\s+\w+\s+cov: (\d+)")
ERROR = "== ERROR: libFuzzer"
"""What the engine says of a finding is around it."""


@dataclass(frozen=True)
class Campaign:
    """How one target went. `saved` are the inputs that were findings; `output` is the end of its output."""

    target: str
    runs: int
    coverage: int
    seconds: float
    saved: tuple[Path, ...]
    output: str = ""


def why_not() -> str:
    """Why this machine cannot run the engine, "" if it can."""
    return "" if importlib.util.find_spec("atheris") else "atheris is not installed (no wheel for this interpreter)"


def instrument() -> None:
    """Import the package with coverage built in; before anything else imports it, once per process."""
    atheris: Any = importlib.import_module("atheris")
    quiet = contextlib.redirect_stderr(io.StringIO())  # a line for each module
    with quiet, atheris.instrument_imports(include=["driver_manager"], enable_loader_override=False):
        importlib.import_module("tests.assurance.fuzz.targets")


def campaign(target: Target, *, runs: int, seconds: float, seed: int) -> Campaign:
    """`runs` runs of a target, in at most `seconds` seconds. Raises OSError."""
    FOUND.mkdir(parents=True, exist_ok=True)
    begun_s = time.monotonic()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryFile() as output, tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory) as folder:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _fuzz(target, output.fileno(), Path(folder), runs, seconds, seed)
            sys.exit(0)
        status = _wait(pid, seconds + GRACE_S)
        output.seek(0)
        text = output.read().decode(errors="replace")
    count, coverage = (_COUNTS.findall(text) or [("0", "0")])[-1]
    (done,) = re.findall(r"Done (\d+) runs", text)[-1:] or [count]
    saved = tuple(Path(name) for name in re.findall(r"written to (\S+)", text))
    if status and not saved:
        raise OSError(f"the engine ended with status {status} on {target.name}:\n{text[-3000:]}")
    shown = text[max(0, text.find(ERROR) - 1500) : text.find(ERROR) + 300] if saved else ""
    return Campaign(target.name, int(done), int(coverage), time.monotonic() - begun_s, saved, shown)


def _wait(pid: int, timeout_s: float) -> int:
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.02)  # waitpid(2) knows no timeout
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    raise TimeoutError(f"the engine did not end within {timeout_s:g} s")


def _fuzz(target: Target, output: int, folder: Path, runs: int, seconds: float, seed: int) -> None:
    """The child's life, to the interpreter's own end, where libFuzzer saves a finding. Others remove `folder`."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    atheris: Any = importlib.import_module("atheris")
    tempfile.tempdir = str(folder)
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, content in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(content)
    argv = ["fuzz", f"-runs={runs}", f"-max_total_time={int(seconds)}", f"-seed={seed}", f"-timeout={HANG_S}"]
    argv += [f"-rss_limit_mb={RSS_MIB}", f"-max_len={MAX_BYTES}", "-len_control=0"]
    argv += [f"-artifact_prefix={FOUND}/{target.name}-", str(corpus)]

    def once(data: bytes) -> None:
        check(target, data)

    def change(data: bytes, most: int, number: int) -> bytes:
        random = Random(number)  # noqa: S311  # changes inputs, guards nothing
        if random.random() < 0.5:
            return bytes(atheris.Mutate(data, most))[:most]
        return mutated(target.form, data, random)[:most]

    atheris.Setup(argv, once, custom_mutator=change)
    atheris.Fuzz()
