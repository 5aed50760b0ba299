"""The provenance of a release and its signatures: inputs and outputs are true, and every change is found."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.releasing import provenance, signing
from tests.support.git import git

CHECKOUT = Path(__file__).parents[2]
ALGORITHMS = {"ed25519": (), "EC": ("-pkeyopt", "ec_paramgen_curve:P-256")}
PROVENANCE, BILL, IMAGE = "m-1.provenance.json", "m-1-amd64.cdx.json", "m-1-amd64.oci.tar"
ENVELOPE = "m-1.provenance.dsse.json"


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def keys(folder: Path, algorithm: str = "ed25519") -> tuple[Path, Path]:
    """A private key and its public one."""
    private, public = folder / f"{algorithm}.key", folder / f"{algorithm}.pub"
    openssl("genpkey", "-algorithm", algorithm, *ALGORITHMS[algorithm], "-out", private)
    openssl("pkey", "-in", private, "-pubout", "-out", public)
    return private, public


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A release with one manifest and one image."""
    made = tmp_path / "release"
    made.mkdir()
    for name, text in (("rebellions.yaml", "kind: List\n"), (IMAGE, "image"), (BILL, '{"bomFormat": "CycloneDX"}')):
        (made / name).write_text(text)
    predicate = provenance.provenance(CHECKOUT, "1", 1, {"amd64": ("debian:12", "sha256:ab")}, "https://ci.example/")
    subjects = provenance.sums(made.iterdir())
    (made / PROVENANCE).write_text(json.dumps(provenance.statement(provenance.PROVENANCE, predicate, subjects)))
    (made / "SHA256SUMS").write_text("")
    return made


def test_the_provenance_names_inputs_builder_and_outputs_with_their_hashes(folder: Path) -> None:
    made = json.loads((folder / PROVENANCE).read_text())
    kinds = ("https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1")
    assert (made["_type"], made["predicateType"]) == kinds
    digests = {one["name"]: one["digest"]["sha256"] for one in made["subject"]}
    names = ("rebellions.yaml", IMAGE, BILL)
    assert digests == {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    definition, details = made["predicate"]["buildDefinition"], made["predicate"]["runDetails"]
    assert definition["externalParameters"] == {"version": "1", "sourceDateEpoch": 1}
    source, *locks, base = definition["resolvedDependencies"]
    wanted = {"gitCommit": "HEAD", "gitTree": "HEAD^{tree}"}
    assert source["digest"] == {kind: (git(CHECKOUT, "rev-parse", at) or "").strip() for kind, at in wanted.items()}
    assert ("annotations" in source) is bool(git(CHECKOUT, "status", "--porcelain"))
    files = {f"requirements/{path.name}": path.read_bytes() for path in (CHECKOUT / "requirements").iterdir()}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    assert {one["name"]: one["digest"]["sha256"] for one in locks} == digests
    image = {"name": "debian:12", "digest": {"sha256": "ab"}, "annotations": {"architecture": "amd64"}}
    assert image.items() <= base.items()
    assert details == {"builder": {"id": "https://ci.example/"}}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_signed_is_verified_by_the_script_and_by_openssl_alone(folder: Path, algorithm: str) -> None:
    private, public = keys(folder.parent, algorithm)
    words = [str(CHECKOUT / "scripts/sign"), "--key", private.name, "release"]
    done = subprocess.run(words, cwd=folder.parent, capture_output=True, text=True, check=True)
    envelopes = [BILL.replace(".json", ".dsse.json"), ENVELOPE]
    assert done.stdout.split() == envelopes
    words = [words[0], "--verify", "--key", public.name, "release"]
    done = subprocess.run(words, cwd=folder.parent, capture_output=True, text=True, check=True)
    assert done.stdout == "sign: 4 files are as they were signed\n"
    for name in envelopes:
        envelope = json.loads((folder / name).read_text())
        payload = base64.b64decode(envelope["payload"])
        kind = "application/vnd.in-toto+json"
        assert envelope["payloadType"] == kind
        data, signature = folder.parent / "data", folder.parent / "signature"
        data.write_bytes(f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload)
        signature.write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
        openssl("pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", "-in", data, "-sigfile", signature)
    bill = json.loads(base64.b64decode(json.loads((folder / envelopes[0]).read_text())["payload"]))
    document = json.loads((folder / BILL).read_text())
    assert (bill["predicateType"], bill["predicate"]) == ("https://cyclonedx.org/bom", document)
    assert [one["name"] for one in bill["subject"]] == [IMAGE]


def changed(folder: Path, change: Callable[[dict[str, Any]], object], name: str = ENVELOPE) -> None:
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


def payload(envelope: dict[str, Any]) -> None:
    made = base64.b64decode(envelope["payload"]).replace(b"ci.example", b"ci.evil.ex")
    envelope["payload"] = base64.b64encode(made).decode()


def signature(envelope: dict[str, Any]) -> None:
    made = bytearray(base64.b64decode(envelope["signatures"][0]["sig"]))
    made[9] ^= 1
    envelope["signatures"][0]["sig"] = base64.b64encode(made).decode()


TAMPERED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a manifest": (lambda at: (at / "rebellions.yaml").write_text("kind: Evil\n"), "rebellions.yaml is not the file"),
    "an image": (lambda at: (at / IMAGE).write_text("other"), f"{IMAGE} is not the file"),
    "a bill": (lambda at: (at / BILL).write_text("{}"), f"{BILL} is not"),
    "the provenance": (lambda at: (at / PROVENANCE).write_text("{}"), f"{PROVENANCE} is not what was signed"),
    "a file more": (lambda at: (at / "evil.yaml").write_text(""), "no signature covers evil.yaml"),
    "a file less": (lambda at: (at / "rebellions.yaml").unlink(), "rebellions.yaml is not the file"),
    "no provenance": (lambda at: (at / PROVENANCE).unlink(), "has no provenance"),
    "the sums": (lambda at: (at / "SHA256SUMS").write_text("ab  rebellions.yaml\n"), "SHA256SUMS: rebellions.yaml is"),
    "an envelope more": (lambda at: (at / "evil.dsse.json").write_text("{}"), "no signature covers evil.dsse.json"),
    "no JSON": (lambda at: (at / PROVENANCE).write_text("{"), f"{PROVENANCE} cannot be read"),
    "no envelope": (lambda at: (at / ENVELOPE).unlink(), "cannot be read"),
    "payload": (lambda at: changed(at, payload), "no signature is of this key"),
    "signature": (lambda at: changed(at, signature), "no signature is of this key"),
    "no signature": (lambda at: changed(at, lambda one: one["signatures"].clear()), "no signature is of this key"),
    "type": (lambda at: changed(at, lambda one: one.update(payloadType="text/plain")), "no signature is of this"),
    "no base64": (lambda at: changed(at, lambda one: one.update(payload="?")), "cannot be read"),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_change_of_anything_is_found(folder: Path, what: str) -> None:
    change, error = TAMPERED[what]
    private, public = keys(folder.parent)
    signing.sign(folder, private)
    assert len(signing.verify(folder, public)) == 4
    change(folder)
    with pytest.raises(signing.SigningError, match=error):
        signing.verify(folder, public)


WRONG: dict[str, tuple[Callable[[Path, dict[str, Any]], object], str]] = {
    "another file": (lambda _, made: made["subject"][0]["digest"].update(sha256="ab"), "is not the file"),
    "a file more": (lambda at, _: (at / "evil.yaml").write_text(""), "no signature covers evil.yaml"),
    "a path": (lambda _, made: made["subject"][0].update(name="../x"), "'../x' is not the name of a file"),
    "no subject": (lambda _, made: made.pop("subject"), "is not an in-toto statement"),
    "no sum": (lambda _, made: made["subject"][0].update(digest={}), "is not an in-toto statement"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_would_not_be_verified_is_not_signed(folder: Path, what: str) -> None:
    change, error = WRONG[what]
    changed(folder, lambda made: change(folder, made), PROVENANCE)
    with pytest.raises(signing.SigningError, match=error):
        signing.sign(folder, keys(folder.parent)[0])
    assert not list(folder.glob("*.dsse.json"))


def test_a_signature_of_another_key_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder.parent / "other").mkdir()
    signing.sign(folder, keys(folder.parent / "other")[0])
    _, public = keys(folder.parent)
    assert signing.main(["--verify", "--key", str(public), str(folder)]) == 1
    assert "no signature is of this key" in capsys.readouterr().err
    assert signing.main(["--key", str(folder / "absent"), str(folder)]) == 1
    assert "there is no key" in capsys.readouterr().err
