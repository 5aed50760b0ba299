"""Owns the fault proxy between agents and the real API server: where it listens, its connections, what tests ask it.

It passes everything on unchanged but for what an old server lacks (`oldserver`) and for the scripted faults (`faults`).
Clients keep their tokens, so rights, conflicts and resource versions are the server's own. Must not import the product.
"""

from __future__ import annotations

import errno
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.support.control_plane.api import PATIENCE_S
from tests.support.control_plane.exchanges import Exchange, ExchangeLog
from tests.support.control_plane.fault_script import to_text
from tests.support.control_plane.faults import Fault, Script
from tests.support.control_plane.hangups import Hangups
from tests.support.control_plane.old_server import OLD_POLICY
from tests.support.control_plane.proxy_connection import Connection, Stage
from tests.support.control_plane.proxy_identity import GOOD, Identity
from tests.support.control_plane.servers import ControlPlane

CLOSE_LIMIT_S = 0.5
"""On an idle machine; a test says so."""

_CLOSE_PATIENCE_S = 30.0
_BACKLOG = 1024  # a thousand nodes may start at once


class Proxy:
    """Listens on loopback, or at `address`, for as long as the context lasts; any number of clients may use it.

    With `certificates` (file and key by name, one of them `good`) it speaks TLS, without them plain HTTP. `users` names
    who a bearer token stands for. `policy` is the API version of the evictions that the server knows. Leaving the
    context ends whatever is open, within `CLOSE_LIMIT_S` seconds.
    """

    def __init__(
        self,
        server: str,
        ca: Path | None = None,
        certificates: Mapping[str, tuple[Path, Path]] | None = None,
        users: Mapping[str, str] | None = None,
        faults: Iterable[Fault] = (),
        address: tuple[str, int] | None = None,
        policy: str = OLD_POLICY,
    ) -> None:
        self._address = address
        self._policy = policy
        self._is_encrypted = bool(certificates)
        self.identity = Identity(certificates or {}, users or {})
        self._changed = threading.Condition()
        self._connections: dict[Connection, threading.Thread] = {}
        self._back_at_s = 0.0
        self._is_listening = True
        self._closing = threading.Event()
        self._log = ExchangeLog()
        self._script = Script(faults)
        self._server = urlsplit(server)
        self._to_server = ssl.create_default_context(cafile=str(ca)) if ca else None

    @classmethod
    def before(cls, plane: ControlPlane, *faults: Fault) -> Self:
        """A proxy before this control plane, with the server's own certificate."""
        users = {user.token: user.name for user in plane.users}
        return cls(plane.url, plane.ca, {GOOD: plane.server_certificate}, users, faults)

    def __enter__(self) -> Self:
        self._listener = socket.create_server(self._address, backlog=_BACKLOG) if self._address else _listener()
        self._hangups = Hangups()
        self._stage = Stage(
            self._server,
            self._to_server,
            self.identity,
            self._script,
            self._log,
            self._hangups,
            self._closing,
            self.go_away,
            self._policy,
        )
        self._acceptor = threading.Thread(target=self._accept, name="proxy-acceptor")
        self._acceptor.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        deadline_s = time.monotonic() + _CLOSE_PATIENCE_S
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
        self._script.release()
        self._stop_listening()
        self._acceptor.join()
        self._listener.close()
        threads = self._shut_connections()
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        self._hangups.close()
        alive = [thread.name for thread in threads if thread.is_alive()]
        assert not alive, f"still running {_CLOSE_PATIENCE_S:g} s after the proxy was closed: {', '.join(alive)}"

    @property
    def url(self) -> str:
        """Where clients find it, for a kubeconfig."""
        scheme = "https" if self._is_encrypted else "http"
        return f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"

    def add(self, *faults: Fault) -> None:
        """Append faults to the script; they count requests from now on."""
        self._script.add(*faults)

    def release(self, *faults: Fault) -> None:
        """Let the requests held by these faults (by all, if none is named) go on."""
        self._script.release(*faults)

    def lift(self, fault: Fault) -> None:
        """From now on the fault meets no request."""
        self._script.lift(fault)

    def fired(self, fault: Fault) -> int:
        """How often the fault has acted."""
        return self._script.fired(fault)

    def wait_fired(self, fault: Fault, times: int = 1, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the fault has acted so often. AssertionError after `timeout_s` seconds."""
        self._script.wait_fired(fault, times, timeout_s)

    def assert_all_fired(self) -> None:
        """AssertionError naming the faults that have not acted as often as they were to."""
        unfired = self._script.unfired()
        assert not unfired, f"did not fire: {', '.join(map(repr, unfired))}\n{self.report()}"

    def mark(self) -> int:
        """A place in the record: `exchanges(since=…)` gives what came after it."""
        return len(self._log.all())

    def exchanges(self, verb: str = "", resource: str = "", *, user: str = "", since: int = 0) -> list[Exchange]:
        """What was asked, in order; `resource` with its subresource, "" for any."""
        return [
            exchange
            for exchange in self._log.all()[since:]
            if verb in ("", exchange.request.target.verb)
            and resource in ("", exchange.request.target.resource)
            and user in ("", exchange.request.user)
        ]

    def report(self) -> str:
        """One line for each request, with the faults that met it, then the script as it can be read back."""
        script = to_text(self._script.faults)
        return "\n".join([*map(str, self._log.all()), *([f"script:\n{script}"] if script else [])])

    def go_away(self, seconds: float) -> None:
        """End every connection, and refuse new ones for `seconds`: for no time at all, none is refused."""
        with self._changed:
            self._back_at_s = time.monotonic() + seconds
            self._changed.notify_all()  # it may be away already, and for longer
        if seconds > 0:
            self._stop_listening()
        self._shut_connections()

    def _stop_listening(self) -> None:
        """Refuse connections, and keep the port: a socket bound to a port of its own choice may listen again.

        Not where it does not listen: Linux would hand the shutdown down to every connection that is accepted later.
        """
        with self._changed:
            if self._is_listening:
                self._is_listening = False
                self._listener.shutdown(socket.SHUT_RDWR)

    def _shut_connections(self) -> list[threading.Thread]:
        with self._changed:
            connections = dict(self._connections)
        for connection in connections:
            connection.shut()
        return list(connections.values())

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if error.errno != errno.EINVAL:  # EINVAL: it was told to listen no more
                    raise
                self._wait_back()
                continue
            self._start(client)

    def _wait_back(self) -> None:
        """Listen again when the time has come."""
        with self._changed:
            while not self._closing.is_set() and (left_s := self._back_at_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            if not self._closing.is_set():
                self._listener.listen(_BACKLOG)
                self._is_listening = True

    def _start(self, client: socket.socket) -> None:
        connection = Connection(self._stage, client)
        thread = threading.Thread(target=self._serve, args=(connection,), name="proxy-connection", daemon=True)
        with self._changed:
            self._connections[connection] = thread
            is_gone = time.monotonic() < self._back_at_s
        if is_gone:  # accepted just before
            connection.shut()
        thread.start()

    def _serve(self, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            with self._changed:
                del self._connections[connection]


def _listener() -> socket.socket:
    """Listening on a port of loopback that was named when it was bound: only such a port outlasts a pause."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as found:
            address = found.getsockname()
        try:
            return socket.create_server(address, backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:  # somebody else was faster
                raise
