"""What clusters ask for around the pods, on the real API server: OpenShift's constraints, a quota, a network policy."""

from __future__ import annotations

import copy

import pytest

from scripts.releasing.kustomize import only, render_with_namespace
from tests.support.control_plane.api import Api, Json, refusal, wait_until
from tests.support.deploy.apply import applied, apply

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KIND = "SecurityContextConstraints"
GROUP = "security.openshift.io"
PLURAL = "securitycontextconstraints"
AROUND = ("openshift", "openshift-rebooter", "resource-quota", "network-policy")


def constraints() -> Json:
    """OpenShift's definition (github.com/openshift/api, security/v1: its CRD, strategies and volumes by types.go)."""
    flag: Json = {"type": "boolean"}
    texts: Json = {"type": "array", "nullable": True, "items": {"type": "string"}}
    flags = ("DirVolumePlugin", "IPC", "Network", "PID", "Ports")
    required: Json = {f"allowHost{name}": flag for name in flags}
    required |= {"allowPrivilegedContainer": flag, "readOnlyRootFilesystem": flag}
    required |= dict.fromkeys(("allowedCapabilities", "defaultAddCapabilities", "requiredDropCapabilities"), texts)
    required |= {"priority": {"type": "integer", "nullable": True}}
    volumes = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "hostPath",
        "projected",
        "secret",
        "none",
        "*",
    ]
    required |= {"volumes": {"type": "array", "items": {"type": "string", "enum": volumes}}}

    def strategy(*names: str) -> Json:
        return {"type": "object", "properties": {"type": {"type": "string", "enum": [*names, "RunAsAny", "MustRunAs"]}}}

    properties = {
        **required,
        "allowPrivilegeEscalation": {**flag, "nullable": True},
        "runAsUser": strategy("MustRunAsRange", "MustRunAsNonRoot"),
        **{name: strategy() for name in ("seLinuxContext", "fsGroup", "supplementalGroups")},
        "users": texts,
        "groups": texts,
    }
    schema = {"type": "object", "required": sorted(required), "properties": properties}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": PLURAL, "singular": PLURAL, "kind": KIND}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Cluster", "names": names, "versions": [version]},
    }


@pytest.fixture(scope="module")
def served(admin_api: Api) -> None:
    """The server knows OpenShift's kind."""
    admin_api.post(CRD, constraints())
    wait_until(lambda: admin_api.answers(f"/apis/{GROUP}/v1/{PLURAL}"), "the constraints are served")


@pytest.mark.usefixtures("served")
def test_the_api_server_knows_every_field_and_a_wrong_one_is_refused(admin_api: Api) -> None:
    objects = render_with_namespace("ascend", *AROUND)
    with applied(admin_api, objects):
        for kind, name in (
            ("SecurityContextConstraints", "ascend-driver"),
            ("ResourceQuota", ""),
            ("NetworkPolicy", ""),
        ):
            kept = apply(admin_api, only(objects, kind, name))
            assert kept["metadata"].get("namespace", "") == ("" if kind == KIND else "npu-operator")
            broken = copy.deepcopy(only(objects, kind, name))
            (broken if kind == KIND else broken["spec"])["alowed"] = True
            assert "alowed" in str(refusal(lambda broken=broken: apply(admin_api, broken)))  # type: ignore[misc]


@pytest.mark.shares(6)
@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("account", "may_use", "constraint"),
    [
        ("ascend-driver", True, "ascend-driver"),
        ("ascend-driver", False, "ascend-driver-rebooter"),
        ("ascend-driver-rebooter", True, "ascend-driver-rebooter"),
        ("ascend-driver-rebooter", False, "privileged"),
    ],
)
def test_an_account_may_use_its_own_constraints_in_its_namespace_only(
    admin_api: Api, account: str, may_use: bool, constraint: str
) -> None:
    # OpenShift admits a pod by what its account may use: verb `use`, asked in the pod's namespace.
    with applied(admin_api, render_with_namespace("ascend", *AROUND)):
        for namespace, wanted in (("npu-operator", may_use), ("default", False)):
            attributes = {"verb": "use", "group": GROUP, "resource": PLURAL, "name": constraint, "namespace": namespace}
            user = f"system:serviceaccount:npu-operator:{account}"
            review = {"spec": {"user": user, "resourceAttributes": attributes}}
            said = admin_api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
            assert said["status"]["allowed"] is wanted, (namespace, said)
