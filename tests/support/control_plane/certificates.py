"""Owns the making of certificates: a CA and what it signs, good, expired or strange. Must not import the product."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_NAMES = "subjectAltName=IP:127.0.0.1,IP:10.0.2.2,DNS:localhost"  # 10.0.2.2: the host as a QEMU guest sees it
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class CertificateError(Exception):
    """openssl failed; the message ends with what it said."""


@dataclass(frozen=True)
class Authority:
    """A CA in a folder of its own: `ca.crt` and `ca.key`, PEM. `names` are those of the servers that it signs for."""

    folder: Path
    names: str = _NAMES

    @property
    def certificate(self) -> Path:
        """Of the CA itself."""
        return self.folder / "ca.crt"

    def establish(self) -> None:
        """Make the CA, for two days."""
        extensions = ["-addext", "keyUsage=critical,keyCertSign", "-subj", "/CN=cluster-tests-ca"]
        self._openssl("req", "-x509", *_NEW_KEY, *extensions, "-days", "2", "-keyout", "ca.key", "-out", "ca.crt")

    def sign(self, name: str, *, days: int = 2) -> tuple[Path, Path]:
        """Certificate and key of a server on loopback, or of its client, PEM; with 0 `days` it has expired."""
        extensions = self.folder / "extensions"
        extensions.write_text(
            f"{self.names}\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n"
            "authorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
        )
        key, request, signed = f"{name}.key", f"{name}.csr", f"{name}.crt"
        self._openssl("req", *_NEW_KEY, "-subj", "/CN=127.0.0.1", "-keyout", key, "-out", request)
        signing = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", str(extensions)]
        self._openssl("x509", "-req", "-in", request, *signing, "-days", str(days), "-out", signed)
        return self.folder / signed, self.folder / key

    def _openssl(self, *args: str) -> None:
        done = subprocess.run(
            ["openssl", *args], cwd=self.folder, capture_output=True, text=True, timeout=150, check=False
        )
        if done.returncode:
            raise CertificateError(f"openssl {args[0]} ended with status {done.returncode}:\n{done.stderr}")


def all_certificates(good: Authority, folder: Path) -> dict[str, tuple[Path, Path]]:
    """Of one server: `good`, `expired` by the same CA, and `strange` by another one, which is made in `folder`."""
    other = Authority(folder)
    other.establish()
    return {
        "good": good.sign("proxy"),
        "expired": good.sign("expired", days=0),
        "strange": other.sign("strange"),
    }
