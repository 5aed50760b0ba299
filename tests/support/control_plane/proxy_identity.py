"""Owns whom the fault proxy claims to be (its certificate), and whom it knows (bearer tokens, and until when).

Safe to share between threads. Must not import the product.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Mapping
from pathlib import Path

GOOD = "good"


class Identity:
    """With no certificates the proxy speaks plain HTTP. `users` names who a bearer token stands for."""

    def __init__(self, certificates: Mapping[str, tuple[Path, Path]], users: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._contexts = {name: _context(pair) for name, pair in certificates.items()}
        self._users = dict(users)
        self._expired: set[str] = set()
        self._known_as: dict[str, str] = {}  # token → the one that the server knows it by
        self._impersonated: dict[str, dict[str, str]] = {}
        self._presented, self._handshakes = GOOD, 0.0

    def present(self, name: str, handshakes: float) -> None:
        """Greet the next `handshakes` clients with the certificate called `name`, then with the good one again."""
        assert name in self._contexts, (
            f"no certificate {name!r}: the proxy speaks {', '.join(self._contexts) or 'HTTP'}"
        )
        with self._lock:
            self._presented, self._handshakes = name, handshakes

    def greeting(self) -> ssl.SSLContext | None:
        """What to greet the next client with; None for plain HTTP."""
        with self._lock:
            name = GOOD if self._handshakes <= 0 else self._presented
            self._handshakes -= 1
        return self._contexts.get(name)

    def rotate(self, old: str, new: str) -> None:
        """From now on `new` stands for whom `old` stood for, and `old` for nobody."""
        with self._lock:
            self._expired.add(old)
            self._known_as[new] = self._known_as.get(old, old)

    def is_expired(self, token: str) -> bool:
        """Whether the server is to be taken for one that does not know it any more."""
        with self._lock:
            return token in self._expired

    def upstream(self, token: str) -> str:
        """The token by which the server knows whom `token` stands for."""
        with self._lock:
            return self._known_as.get(token, token)

    def bind_to_node(self, token: str, user: str, node: str, admin: str) -> None:
        """From now on the server takes `token` for one of a pod of `user` on `node`, as servers since 1.30 do.

        A server that puts no node into tokens gets it by impersonation, with the token of `admin`.
        """
        extra = "Impersonate-Extra-authentication.kubernetes.io%2fnode-name"
        with self._lock:
            self._impersonated[token] = {
                "Authorization": f"Bearer {admin}",
                "Impersonate-User": user,
                **({extra: node} if node else {}),
            }

    def headers(self, token: str) -> dict[str, str]:
        """How the server learns whom `token` stands for."""
        with self._lock:
            known = self._impersonated.get(token)
        return known or {"Authorization": f"Bearer {self.upstream(token)}"}

    def user(self, token: str) -> str:
        """Who it stands for; "" for nobody who was registered."""
        return self._users.get(self.upstream(token), "")


def _context(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*map(str, certificate))
    return context
