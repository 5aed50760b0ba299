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
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.releasing.provenance import BILL, PROVENANCE, STATEMENT, Json, sha256, statement, sums

PAYLOAD_TYPE = "application/vnd.in-toto+json"
PROVENANCE_END, BILL_END, IMAGE_END, ENVELOPE_END = ".provenance.json", ".cdx.json", ".oci.tar", ".dsse.json"
SUMS = "SHA256SUMS"


class SigningError(Exception):
    """A signature could not be made, or does not hold; the message has the reason."""


def sign(folder: Path, key: Path) -> list[Path]:
    """Write the envelope of each statement into the folder. Raises SigningError, OSError."""
    made = []
    for name, payload in _payloads(folder):
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
    covered = set[str]()
    for name, payload in _payloads(folder):
        file = f"{name}{ENVELOPE_END}"
        signed = _opened(folder / file, key)
        for subject in signed["subject"]:
            path = folder / subject["name"]
            if not path.is_file() or sha256(path) != subject["digest"]["sha256"]:
                raise SigningError(f"{file}: {path.name} is not the file that was signed")
            covered.add(path.name)
        if signed != payload:
            raise SigningError(f"{file}: {name}.json is not what was signed")
        covered.add(f"{name}.json")
    if missed := {path.name for path in _files(folder)} - covered:
        raise SigningError(f"no signature covers {', '.join(sorted(missed))}")
    return sorted(covered)


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
            yield path.stem, json.loads(path.read_text())
        elif path.name.endswith(BILL_END):
            image = folder / f"{path.name.removesuffix(BILL_END)}{IMAGE_END}"
            yield path.stem, statement(BILL, json.loads(path.read_text()), sums([image]))


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
    made: Json = json.loads(payload)
    if made["_type"] != STATEMENT or made["predicateType"] not in {PROVENANCE, BILL}:
        raise SigningError(f"{file.name} is a statement of another kind")
    return made


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
