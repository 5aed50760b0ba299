"""What may leave a cluster in a bug report: fields of objects by allow-list, and texts without secrets.

Objects keep only the fields below. Texts, which have no fields, lose what looks like a secret: this is the second
guard, and it cannot find a secret that looks like a word or like a digest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from driver_manager.domain.settings import HEADINGS

REDACTED = "REDACTED"

_WORDS = (
    "passw(?:or)?d|passphrase|passcode|secret|token|credential|key-data|session[_-]?id|x-amz-signature"
    "|(?:api|access|private|account|signing|encryption|ssh)[_-]?key"
)
_MOST = 8192
_NAMED_VALUE = re.compile(
    # A name, or a name and `value` as in a variable of a container, with the quote behind it.
    rf"""((?:{_WORDS})[\w.-]{{0,32}}+(?:(?:\\*+["'])?+,?(?:\s|\\n)*+(?:\\*+["'])?+value)?(?P<end>\\*+["'])?+\s*+(?:[:=]{{1,2}}+>?|%3d)\s*+)"""
    # In quotes, in escaped quotes, or in quotes without an end. A quote before a comma ends a text of JSON.
    rf"""(?P<value>(?!"\s*[,}}\]])(?:\"(?:[^"\\]|\\.){{0,{_MOST}}}\"|(?P<quote>\\+["'])(?:(?!(?P=quote)|(?<!\\)\").){{0,{_MOST}}}(?P=quote)"""
    rf"""|'(?:[^'\n]|''){{0,{_MOST}}}'|["'][^"'\n]*(?=\n|\Z)|\\+["'][^"'\n\\]*(?=["\n]|\Z)"""
    # A block of YAML, a list or an object.
    r"""|[|>][-+\d]{0,2}[ \t]*(?:(?:\n[ \t][^\n]*)++|(?:\\n[ \t][^\n"\\]*)++)"""
    r"""|\[(?:\\.|"(?:[^"\\]|\\.)*+"|[^][{}"\\])*+\]"""
    r"""|\{(?:\\.|"(?:[^"\\]|\\.)*+"|[^{}"\\]|\{(?:\\.|"(?:[^"\\]|\\.)*+"|[^{}"\\])*+\})*+\}"""
    # One word, which is not redacted yet and is not a value of JSON. A mark within it does not begin another name.
    rf"""|(?!["'\\]*{REDACTED}\b|[\[{{]\\*["'\]}}]|(?:true|false|null)(?![^\s,;}}\]"'\\]))"""
    r"""["'\\]*(?:[^\s,;}\]"'\\]|[,;}\]'](?=[\w+/-])(?![\w.-]{1,64}[:=])|\\(?=[^\s"'\\/bfnrtu]))+))""",
    re.IGNORECASE,
)
_OPENING = re.compile(r"""\\*["']?""")
_BLOB = re.compile(r"[A-Za-z0-9+/_-]{40,}={0,2}")
_NAMED = re.compile(_WORDS, re.IGNORECASE)

_PATTERNS = (
    # PEM (RFC 7468), also with its line feeds escaped, without its end, or without its beginning.
    (
        re.compile(
            r'-----BEGIN [A-Z0-9 ]{1,64}-----(?:[^-"\\]|\\[^"]|-(?!----)){0,65536}(?:-----END [A-Z0-9 ]{1,64}-----)?'
        ),
        "%",
    ),
    (re.compile(r"\A(?:[A-Za-z0-9+/=]{0,128}\r?\n)++-----END [A-Z0-9 ]{1,64}-----"), "%"),
    # With the parameters of RFC 9110, which may be in quotes.
    (
        re.compile(
            r"""(\b(?:authorization|cookie)\\*["']?\s*[:=]\s*(?:\\*+["'])?+)(?=[^\s\]}])"""
            r"""(?:(?!\s\w{1,64}=\\*")[^\n"'\\,}]|,?\s?\w{1,64}=\\*"[^"\\\n]*\\*"|,\s?\w{1,64}=)+""",
            re.IGNORECASE,
        ),
        r"\1%",
    ),
    (re.compile(r"""(\bbearer[\s:=]+(?:\\*+["'])?+)[A-Za-z0-9._~+/=-]{12,}""", re.IGNORECASE), r"\1%"),
    # JWT and JWE (RFC 7519, RFC 7516). Each run of letters is looked at once.
    (re.compile(r"(?<![\w-])(?=[\w-]{11,}+\.)([\w-]*?)\beyJ[\w-]{8,}+(?:\.[\w-]*){1,4}"), r"\1%"),
    # Tokens whose issuers mark them by how they begin.
    (
        re.compile(
            r"\b(?:A[KS]IA|AIza|gh[oprsu]_|github_pat_|glpat-|hf_|hvs\.|npm_|dckr_pat_|sk-|xox[a-z]-|ya29\.)[\w-]{16,}"
        ),
        "%",
    ),
    # The user part of a URL; a port and a path may be before an @.
    (re.compile(r"(://)(?:[^\s/:\"'@]{0,256}:(?!\d{1,5}/)[^\s\"']{1,256}|[^\s/\"']{1,512})(?=@)"), r"\1%"),
    (re.compile(r"((?<!\S)(?:-u|--(?:proxy-)?user)[\s=]+)[^\s:\"'\\]{1,256}:[^\s\"'\\]+"), r"\1%"),
    (re.compile(r"""(\"auth\\*"\s*:\s*\\*")[^"\\]+"""), r"\1%"),
    (re.compile(rf"((?<![\w-])--[\w-]{{0,32}}(?:{_WORDS})[\w-]{{0,32}}+\s+)[^\s\"'\\]+", re.IGNORECASE), r"\1%"),
)


def redacted(text: str) -> str:
    """`text` without PEM blocks, tokens, passwords in URLs, values of names such as `token`, and base64 blobs."""
    text = text.replace("\0", "")  # of UTF-16, in which no name would be found
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead.replace("%", REDACTED), text)
    return _BLOB.sub(_without_blob, _NAMED_VALUE.sub(_without_value, text))


def _without_value(found: re.Match[str]) -> str:
    """The name with its value replaced; quotes stay, as they may be those of JSON."""
    opening = _OPENING.match(found["value"])
    quote = opening[0] if opening is not None else ""
    if quote and len(found["value"]) > len(quote) and found["value"].endswith(quote):
        return f"{found[1]}{quote}{REDACTED}{quote}"
    end = "" if quote else found["end"] or ""
    return f"{found[1]}{end}{REDACTED}{end}"


def _without_blob(found: re.Match[str]) -> str:
    """Digests and ids have only one case of letters, and paths have words."""
    text = found[0]
    kinds = (str.islower, str.isupper, str.isdigit)
    return REDACTED if all(any(map(kind, text)) for kind in kinds) else text


def redacted_values(body: Any, *, is_secret: bool = False) -> Any:
    """A JSON value whose texts are redacted, and whose texts below a key such as `token` are replaced."""
    if isinstance(body, str):
        return REDACTED if is_secret else redacted(body)
    if isinstance(body, dict):
        is_variable = bool(_NAMED.search(str(body.get("name"))))
        return {
            redacted(key): redacted_values(
                value, is_secret=is_secret or bool(_NAMED.search(key)) or (is_variable and key == "value")
            )
            for key, value in body.items()
        }
    if isinstance(body, list | tuple):
        return [redacted_values(value, is_secret=is_secret) for value in body]
    return body


# Forms of objects: the allowed keys, each with the form of its value; True for a value that is kept whole.

Form = Mapping[str, Any] | Callable[[Any], Any] | bool


def allowed(body: Any, form: Form) -> Any:
    """The part of `body` that `form` allows; each item of a list has the form of the list. Its texts are redacted."""
    if isinstance(body, list):
        return [allowed(item, form) for item in body]
    if callable(form):
        return form(body)
    if isinstance(form, bool):
        return redacted_values(body)
    return {key: allowed(value, form[key]) for key, value in body.items() if key in form} if type(body) is dict else {}


def _of(*keys: str, **forms: Form) -> dict[str, Form]:
    return {**dict.fromkeys(keys, True), **forms}


OUR_VARIABLES = frozenset(name for _, group in HEADINGS for one in group for name in (one.env, *one.also))
"""The variables whose values a report has."""


def _variable(one: Mapping[str, Any]) -> dict[str, Any]:
    name, source = str(one.get("name")), one.get("valueFrom")
    if source:
        return {"name": name, "valueFrom": sorted(source)}
    value = str(one.get("value", ""))
    return {"name": name, "value": redacted(value) if name in OUR_VARIABLES else REDACTED}


def _volume(one: Mapping[str, Any]) -> dict[str, Any]:
    """Name and kind of a volume, and the path of one of the host."""
    found = {"name": one.get("name"), "kind": sorted(one.keys() - {"name"})}
    return {**found, "hostPath": redacted_values(one["hostPath"])} if "hostPath" in one else found


def _container(one: Mapping[str, Any]) -> dict[str, Any]:
    """Command and arguments only of a container of driver-manager: those of others may have secrets."""
    found: dict[str, Any] = allowed(dict(one), _CONTAINER)
    return found | (allowed(dict(one), _of("command", "args")) if is_ours(one) else {})


_CONTAINER = _of(
    *("name", "image", "imagePullPolicy", "resources", "volumeMounts", "securityContext", "restartPolicy", "ports"),
    env=_variable,
)
_META = _of(
    *("name", "generateName", "namespace", "uid", "labels", "generation", "creationTimestamp", "deletionTimestamp"),
    *("deletionGracePeriodSeconds", "finalizers", "resourceVersion"),
    ownerReferences=_of("kind", "name", "uid", "controller"),
)
_CONDITIONS = _of("type", "status", "reason", "message", "lastTransitionTime", "lastHeartbeatTime")
_POD_SPEC = _of(
    *("nodeName", "nodeSelector", "affinity", "tolerations", "priorityClassName", "serviceAccountName", "hostPID"),
    *("hostNetwork", "hostIPC", "restartPolicy", "terminationGracePeriodSeconds", "securityContext", "resourceClaims"),
    containers=_container,
    initContainers=_container,
    volumes=_volume,
)
_STATUSES = _of("name", "image", "imageID", "ready", "started", "restartCount", "state", "lastState")
POD = {
    "metadata": _META,
    "spec": _POD_SPEC,
    "status": _of(
        *("phase", "reason", "message", "qosClass", "startTime", "nominatedNodeName", "resourceClaimStatuses"),
        conditions=_CONDITIONS,
        containerStatuses=_STATUSES,
        initContainerStatuses=_STATUSES,
    ),
}
DAEMON_SET = {
    "metadata": _META,
    "spec": _of(
        *("selector", "updateStrategy", "minReadySeconds", "revisionHistoryLimit"),
        template={"metadata": _of("labels"), "spec": _POD_SPEC},
    ),
    "status": True,
}
ROLLOUT = {"metadata": _META, "spec": True, "status": True}
EVENT = _of(
    *("type", "reason", "message", "count", "firstTimestamp", "lastTimestamp", "eventTime", "action"),
    metadata=_of("name", "namespace", "creationTimestamp"),
    involvedObject=_of("kind", "namespace", "name", "fieldPath"),
    source=True,
    reportingComponent=True,
    series=_of("count", "lastObservedTime"),
)
NODE_INFO = _of(
    *("architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeletVersion", "operatingSystem"),
    "osImage",
)


NODE = {
    "metadata": _META,
    "spec": _of("unschedulable", "taints"),
    "status": _of("capacity", "allocatable", conditions=_CONDITIONS, nodeInfo=NODE_INFO),
}


def with_annotations(form: Mapping[str, Any], keys: Collection[str]) -> Form:
    """`form` with the annotations `keys`: others are of other programs."""
    return {**form, "metadata": {**_META, "annotations": _of(*keys)}}


_OUR_WORDS = frozenset(
    {"reconcile-driver-state", "reconcile-vfio-state", "health-watch", "rebooter", "preflight", "rollout"}
)
_OUR_NAMES = frozenset({"driver-manager", "k8s-driver-manager", "health-watch"})


def is_ours(container: Mapping[str, Any]) -> bool:
    """True if the container runs driver-manager: by the first word of its command line, or by its name."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    programs = {str(word).rpartition("/")[2] for word in words[:1]}
    return bool(programs & (_OUR_WORDS | _OUR_NAMES)) or container.get("name") in _OUR_NAMES
