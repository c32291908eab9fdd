"""The check of Pod Security Standards that judges our pods: it finds each control broken, and a good pod good."""

import copy
from typing import Any

import pytest

from tests.pod_security import violations

RESTRICTED: dict[str, Any] = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "a",
            "image": "a",
            "ports": [{"containerPort": 80}],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
    "volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "persistentVolumeClaim": {"claimName": "b"}}],
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The good pod with one value set, or taken out if it is None; `path` has dots."""
    spec: dict[str, Any] = copy.deepcopy(RESTRICTED)
    at: Any = spec
    *above, last = path.split(".")
    for part in above:
        at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
    if value is None:
        del at[last]
    else:
        at[last] = value
    return spec


def test_good_pod_meets_both_profiles() -> None:
    assert violations(RESTRICTED, "restricted") == violations(RESTRICTED, "baseline") == set()


@pytest.mark.parametrize(
    ("path", "value", "control"),
    [
        ("hostNetwork", True, "host namespaces"),
        ("hostPID", True, "host namespaces"),
        ("hostIPC", True, "host namespaces"),
        ("volumes", [{"name": "a", "hostPath": {"path": "/"}}], "host path volumes"),
        ("containers.0.ports", [{"containerPort": 80, "hostPort": 80}], "host ports"),
        ("containers.0.securityContext.privileged", True, "privileged containers"),
        ("containers.0.securityContext.capabilities.add", ["IPC_LOCK"], "capabilities"),
        ("containers.0.securityContext.procMount", "Unmasked", "proc mount"),
        ("containers.0.securityContext.seccompProfile", {"type": "Unconfined"}, "seccomp"),
        ("securityContext.appArmorProfile", {"type": "Unconfined"}, "AppArmor"),
        ("securityContext.seLinuxOptions", {"type": "spc_t"}, "SELinux"),
        ("securityContext.seLinuxOptions", {"role": "sysadm_r"}, "SELinux"),
        ("securityContext.sysctls", [{"name": "kernel.msgmax", "value": "1"}], "sysctls"),
        ("initContainers", [{"securityContext": {"privileged": True}}], "privileged containers"),
    ],
)
def test_baseline_finds(path: str, value: Any, control: str) -> None:
    assert violations(changed(path, value), "baseline") == {control}
    assert control in violations(changed(path, value), "restricted")


@pytest.mark.parametrize(
    ("path", "value", "control"),
    [
        ("volumes", [{"name": "a", "nfs": {"server": "a", "path": "/"}}], "volume types"),
        ("securityContext.runAsNonRoot", None, "running as root"),
        ("containers.0.securityContext.runAsNonRoot", False, "running as root"),
        ("securityContext.runAsUser", 0, "running as user 0"),
        ("containers.0.securityContext.runAsUser", 0, "running as user 0"),
        ("securityContext.seccompProfile", None, "seccomp"),
        ("containers.0.securityContext.allowPrivilegeEscalation", None, "privilege escalation"),
        ("containers.0.securityContext.capabilities", None, "capabilities"),
        ("containers.0.securityContext.capabilities.add", ["CHOWN"], "capabilities"),
    ],
)
def test_restricted_finds_what_baseline_allows(path: str, value: Any, control: str) -> None:
    assert violations(changed(path, value), "baseline") == set()
    assert violations(changed(path, value), "restricted") == {control}


def test_init_container_of_the_training_operator_is_not_restricted() -> None:
    """Why the header of a PyTorchJob warns of namespaces that enforce the standard."""
    init = {
        "name": "init-pytorch",
        "image": "alpine:3.10",
        "command": ["sh", "-c", "until nslookup a; do sleep 2; done"],
    }
    assert violations(changed("initContainers", [init]), "restricted") == {"privilege escalation", "capabilities"}
    assert violations(changed("initContainers", [init]), "baseline") == set()
