"""Signs the provenance and the bills of materials of a release folder, and checks the signatures.

Each signature is a DSSE envelope with an in-toto statement, as cosign and in-toto read it.
The key is a PEM file, Ed25519 or ECDSA P-256; OpenSSL signs. A bill of materials is the predicate of a statement about
the image archive beside it.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path

from scripts.releasing.provenance import BILL, PROVENANCE, STATEMENT, Json, sha256, statement, sums

PAYLOAD_TYPE = "application/vnd.in-toto+json"
PROVENANCE_END, BILL_END, IMAGE_END, ENVELOPE_END = ".provenance.json", ".cdx.json", ".oci.tar", ".dsse.json"
SUMS = "SHA256SUMS"


class SigningError(Exception):
    """A signature could not be made, or does not hold; the message has the reason."""


def sign(folder: Path, key: Path) -> list[Path]:
    """Write the envelope of each statement into the folder. Raises SigningError, OSError.

    What `verify` would refuse is not signed.
    """
    made, payloads = [], dict(_payloads(folder))
    covered = {one for name, payload in payloads.items() for one in (*_subjects(folder, name, payload), f"{name}.json")}
    _check_rest(folder, payloads, covered)
    for name, payload in payloads.items():
        data = json.dumps(payload, sort_keys=True).encode()
        signature = _openssl("-sign", key, encoded(PAYLOAD_TYPE, data))
        envelope = {
            "payloadType": PAYLOAD_TYPE,
            "payload": base64.b64encode(data).decode(),
            # cosign leaves the keyid empty, and refuses one of another form.
            "signatures": [{"keyid": "", "sig": base64.b64encode(signature).decode()}],
        }
        made.append(folder / f"{name}{ENVELOPE_END}")
        made[-1].write_text(json.dumps(envelope) + "\n")
    return made


def verify(folder: Path, key: Path) -> list[str]:
    """The names of the files that the signatures cover: all but SHA256SUMS and the envelopes. Raises SigningError."""
    covered, payloads = set[str](), dict(_payloads(folder))
    for name, payload in payloads.items():
        file = f"{name}{ENVELOPE_END}"
        signed = _opened(folder / file, key)
        covered |= _subjects(folder, file, signed)
        if signed != payload:
            raise SigningError(f"{file}: {name}.json is not what was signed")
        covered.add(f"{name}.json")
    _check_rest(folder, payloads, covered)
    return sorted(covered)


def _subjects(folder: Path, file: str, signed: Json) -> set[str]:
    """The names of the files of a statement, which are as it describes them. Raises SigningError."""
    try:
        digests = {one["name"]: one["digest"]["sha256"] for one in signed["subject"]}
    except (KeyError, TypeError) as error:
        raise SigningError(f"{file} is not an in-toto statement: {error!r}") from error
    for name, digest in digests.items():
        path = folder / name
        if Path(name).name != name:
            raise SigningError(f"{file}: {name!r} is not the name of a file of the folder")
        if not path.is_file() or sha256(path) != digest:
            raise SigningError(f"{file}: {name} is not the file that was signed")
    return set(digests)


def _check_rest(folder: Path, payloads: Iterable[str], covered: Set[str]) -> None:
    """Raise SigningError for a file that no statement has, and for a sum in SHA256SUMS that is of another file."""
    known = {*covered, *(f"{name}{ENVELOPE_END}" for name in payloads), SUMS}
    if missed := {path.name for path in folder.iterdir()} - known:
        raise SigningError(f"no signature covers {', '.join(sorted(missed))}")
    listed = folder / SUMS
    for line in listed.read_text().splitlines() if listed.is_file() else ():
        digest, _, name = line.partition("  ")
        if name not in covered or sha256(folder / name) != digest:
            raise SigningError(f"{SUMS}: {name or line} is not the file that was signed")


def encoded(payload_type: str, payload: bytes) -> bytes:
    """What is signed: DSSE's pre-authentication encoding."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _payloads(folder: Path) -> Iterator[tuple[str, Json]]:
    """The statements to sign, each with its file's name without .json. Raises SigningError."""
    files = _files(folder)
    if not any(path.name.endswith(PROVENANCE_END) for path in files):
        raise SigningError(f"{folder} has no provenance; scripts/release makes it")
    for path in files:
        if path.name.endswith(PROVENANCE_END):
            yield path.stem, _document(path)
        elif path.name.endswith(BILL_END):
            image = folder / f"{path.name.removesuffix(BILL_END)}{IMAGE_END}"
            yield path.stem, statement(BILL, _document(path), sums([image]))


def _document(path: Path) -> Json:
    try:
        found: Json = json.loads(path.read_text())
    except ValueError as error:
        raise SigningError(f"{path.name} cannot be read: {error}") from error
    return found


def _files(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.name != SUMS and not one.name.endswith(ENVELOPE_END))


def _opened(file: Path, key: Path) -> Json:
    """The statement in an envelope, of which one signature is of the key. Raises SigningError."""
    try:
        envelope = json.loads(file.read_text())
        kind, payload = envelope["payloadType"], base64.b64decode(envelope["payload"], validate=True)
        signatures = [base64.b64decode(one["sig"], validate=True) for one in envelope["signatures"]]
    except (OSError, ValueError, KeyError, TypeError, binascii.Error) as error:
        raise SigningError(f"{file.name} cannot be read: {error}") from error
    if kind != PAYLOAD_TYPE or not any(_holds(key, encoded(kind, payload), one) for one in signatures):
        raise SigningError(f"{file.name}: no signature is of this key")
    made = json.loads(payload)
    kinds = (made.get("_type"), made.get("predicateType")) if isinstance(made, dict) else ()
    if kinds not in ((STATEMENT, PROVENANCE), (STATEMENT, BILL)):
        raise SigningError(f"{file.name} is a statement of another kind")
    found: Json = made
    return found


def _holds(key: Path, data: bytes, signature: bytes) -> bool:
    with tempfile.NamedTemporaryFile() as file:
        file.write(signature)
        file.flush()
        try:
            _openssl("-verify", key, data, "-pubin", "-sigfile", file.name)
        except SigningError:
            return False
    return True


def _openssl(mode: str, key: Path, data: bytes, *words: str) -> bytes:
    """What `openssl pkeyutl` prints. Raises SigningError."""
    if not key.is_file():
        raise SigningError(f"there is no key {key}")
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        argv = ["openssl", "pkeyutl", mode, "-inkey", str(key), "-rawin", "-in", file.name, *words]
        try:
            done = subprocess.run(argv, capture_output=True, check=False)
        except OSError as error:
            raise SigningError(f"openssl: {error}") from error
    if done.returncode:
        raise SigningError(f"openssl pkeyutl {mode}: {(done.stderr or done.stdout).decode(errors='replace').strip()}")
    return done.stdout


def main(words: Sequence[str] | None = None) -> int:
    """0, or 1 with what is wrong."""
    parser = argparse.ArgumentParser(description="Signs a release folder; scripts/sign is the way to it.")
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args(words)
    try:
        if asked.verify:
            print(f"sign: {len(verify(asked.folder, asked.key))} files are as they were signed")
        else:
            for path in sign(asked.folder, asked.key):
                print(path.name)
    except (SigningError, OSError) as error:
        print(f"sign: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
