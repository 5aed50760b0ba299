"""How requests reach an API server: what a transport gives, and the errors that every transport speaks in.

Two implement it: `driver_manager.adapters.kube.in_pod` for a pod's service account, which needs the standard library
only, and `driver_manager.adapters.kube.library` for kubeconfigs. What an answer means is the caller's.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Protocol

from driver_manager.domain.frozen import Frozen

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Of one answer. The largest that a cluster gives for a good reason is a page of 500 Nodes or the list of a node's pods
(500 at most on common platforms), with up to about 30 KiB for each object.
"""


class Unreachable(Exception):
    """No answer, or half of one. `doubt` is set where the server's certificate is not believed."""

    def __init__(self, why: str, doubt: ssl.SSLCertVerificationError | None = None) -> None:
        super().__init__(why)
        self.doubt = doubt


class CredentialsUnreadable(Exception):
    """The credentials cannot be read now; they may be again later."""


class StreamSilent(Exception):
    """Nothing came for as long as a stream may be silent."""


class StreamCut(Exception):
    """The connection ended before the answer did; the message is the kind of error."""


class WireRequest(Frozen):
    """One request without its credentials. The answer to a `stream` is read bit by bit."""

    method: str
    path: str
    body: bytes | None
    headers: Mapping[str, str]
    stream: bool = False


class Headers(Protocol):
    """Headers of an answer."""

    def get(self, name: str, default: str, /) -> str:
        """The value of the header of that name, in any case."""
        ...


class Response(Protocol):
    """One answer. Of a stream the body is still to be read."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Headers:
        """All of them."""
        ...

    @property
    def data(self) -> bytes:
        """The whole body. Raises StreamCut."""
        ...

    def read_some(self) -> bytes:
        """The next bytes of a stream as they come, b"" at its end. Raises StreamSilent, StreamCut."""
        ...

    def allow(self, silence_s: float, total_s: float) -> None:
        """From now on, wait up to `silence_s` seconds for each next byte of a stream, and `total_s` for its end."""
        ...

    def close(self) -> None:
        """Read no more."""
        ...


class Transport(Protocol):
    """Sends one request at a time to one API server, with credentials."""

    def send(self, request: WireRequest, *, connect_s: float, read_s: float) -> Response:
        """The answer, whole unless it is a stream. Nothing is repeated, no redirection is followed.

        `connect_s` limits, in seconds, the connection and its TLS each. `read_s` limits all of it, from the connection
        to the end of the answer; for a stream, until `allow` gives it more. A body of more than MAX_BODY_BYTES counts
        as no answer. Raises Unreachable, CredentialsUnreadable, and ValueError where the credentials hold what no
        header can.
        """
        ...

    def renew(self) -> bool:
        """Read credentials and CA again from where they come from; False where they come from nowhere.

        Raises ConfigError.
        """
        ...


def no_way(where: str, why: str) -> tuple[str, str]:
    """What to say, and its remedy, where there is no usable way to the cluster; `where` is the kubeconfig or ""."""
    return (
        f"cannot connect to the cluster{f' with {where}' if where else ''}: {why}",
        "Set KUBECONFIG (or --kubeconfig) to a valid file, or run in a pod with a service account.",
    )
