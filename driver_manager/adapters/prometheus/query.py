"""One query to a Prometheus server, by the standard library: bounded in time and in size, and nowhere else.

No redirect is followed, no proxy is asked, and nothing is sent but the query. HTTPS trusts the authorities of the
system (`SSL_CERT_FILE` names others).
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
import time
from urllib.parse import urlencode, urlsplit

from driver_manager.adapters.http.bounded import Bounded, BoundedHttps, TooLarge, whole
from driver_manager.domain.fleet.metric_gates import MetricAnswer, MetricQuestion, answer_of

LIMIT_S = 10.0
"""Of one query, from the connection to the end of the answer. A slow connection and a slow TLS handshake may take so
long each.
"""

MAX_BYTES = 256 * 1024
"""Of an answer; one that is longer is no single number."""

_PORTS = {"http": 80, "https": 443}


def ask(question: MetricQuestion, limit_s: float = LIMIT_S) -> tuple[MetricAnswer, bool]:
    """What the server answers, and whether it was reached. Never raises for what comes from outside."""
    asked_s = time.time()
    try:
        status, body = _got(question, limit_s)
    except TooLarge as error:
        return MetricAnswer(asked_s, problem=str(error)), True
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = _why(error, limit_s)
        return MetricAnswer(asked_s, problem=f"{_host(question)} cannot be queried: {why}"), False
    return answer_of(status, body, asked_s), True


def _got(question: MetricQuestion, limit_s: float) -> tuple[int, bytes]:
    """Status and body. Raises OSError, HTTPException, ValueError, TooLarge."""
    parts = urlsplit(question.url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    words = urlencode({"query": question.query, "timeout": f"{limit_s:g}s"})
    end_s = time.monotonic() + limit_s
    connection = (
        BoundedHttps(host, port, timeout=limit_s, context=ssl.create_default_context())
        if parts.scheme == "https"
        else Bounded(host, port, timeout=limit_s)
    )
    with contextlib.closing(connection):
        connection.connect()
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.sock.settimeout(left_s)
        connection.request(
            "GET", f"{parts.path.rstrip('/')}/api/v1/query?{words}", headers={"Accept": "application/json"}
        )
        answer = connection.getresponse()
        return answer.status, whole(answer.read, MAX_BYTES)


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
