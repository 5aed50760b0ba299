"""One query to a Prometheus server, by the standard library: bounded in time and in size, and nowhere else.

No redirect is followed, no proxy is asked, and nothing is sent but the query. HTTPS trusts the authorities of the
system (`SSL_CERT_FILE` names others).
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from urllib.parse import urlencode, urlsplit

from driver_manager.domain.fleet.metric_gates import MetricAnswer, MetricQuestion, answer_of

LIMIT_S = 10.0
"""Of one query, from the connection to the end of the answer. Finding the address by its name is not in it."""

MAX_BYTES = 256 * 1024
"""Of an answer; one that is longer is no single number."""

_PORTS = {"http": 80, "https": 443}


def ask(question: MetricQuestion, limit_s: float = LIMIT_S) -> tuple[MetricAnswer, bool]:
    """What the server answers, and whether it was reached. Never raises for what comes from outside."""
    asked_s = time.time()
    try:
        status, body = _got(question, limit_s)
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = _why(error, limit_s)
        return MetricAnswer(asked_s, problem=f"{_host(question)} cannot be queried: {why}"), False
    if len(body) > MAX_BYTES:
        return MetricAnswer(asked_s, problem=f"the answer has more than {MAX_BYTES // 1024} KiB"), True
    return answer_of(status, body, asked_s), True


def _got(question: MetricQuestion, limit_s: float) -> tuple[int, bytes]:
    """Status and body, of which there may be one byte too much. Raises OSError, HTTPException, ValueError."""
    parts = urlsplit(question.url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    words = urlencode({"query": question.query, "timeout": f"{limit_s:g}s"})
    connection = (
        http.client.HTTPSConnection(host, port, timeout=limit_s, context=ssl.create_default_context())
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=limit_s)
    )
    # A socket's own limit is for each of its waits: who sends a byte now and then would never reach it.
    is_late = threading.Event()
    alarm = threading.Timer(limit_s, _cut, (connection, is_late))
    alarm.daemon = True
    with contextlib.closing(connection):
        alarm.start()
        try:
            connection.connect()
            connection.request(
                "GET", f"{parts.path.rstrip('/')}/api/v1/query?{words}", headers={"Accept": "application/json"}
            )
            answer = connection.getresponse()
            found = answer.status, answer.read(MAX_BYTES + 1)
        finally:
            alarm.cancel()
            if is_late.is_set():
                raise TimeoutError
    return found


def _cut(connection: http.client.HTTPConnection, is_late: threading.Event) -> None:
    """End whatever the connection waits for."""
    is_late.set()
    sock = connection.sock
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _host(question: MetricQuestion) -> str:
    return urlsplit(question.url).netloc.rpartition("@")[2]


def _why(error: Exception, limit_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {limit_s:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
