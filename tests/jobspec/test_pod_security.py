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
    ("path", "value", "control", "is_baseline"),
    [
        ("hostNetwork", True, "host namespaces", True),
        ("hostPID", True, "host namespaces", True),
        ("hostIPC", True, "host namespaces", True),
        ("volumes", [{"name": "a", "hostPath": {"path": "/"}}], "host path volumes", True),
        ("containers.0.ports", [{"containerPort": 80, "hostPort": 80}], "host ports", True),
        ("containers.0.securityContext.privileged", True, "privileged containers", True),
        ("containers.0.securityContext.capabilities.add", ["IPC_LOCK"], "capabilities", True),
        ("containers.0.securityContext.procMount", "Unmasked", "proc mount", True),
        ("containers.0.securityContext.seccompProfile", {"type": "Unconfined"}, "seccomp", True),
        ("securityContext.appArmorProfile", {"type": "Unconfined"}, "AppArmor", True),
        ("securityContext.seLinuxOptions", {"type": "spc_t"}, "SELinux", True),
        ("securityContext.seLinuxOptions", {"role": "sysadm_r"}, "SELinux", True),
        ("securityContext.sysctls", [{"name": "kernel.msgmax", "value": "1"}], "sysctls", True),
        ("initContainers", [{"securityContext": {"privileged": True}}], "privileged containers", True),
        ("volumes", [{"name": "a", "nfs": {"server": "a", "path": "/"}}], "volume types", False),
        ("securityContext.runAsNonRoot", None, "running as root", False),
        ("containers.0.securityContext.runAsNonRoot", False, "running as root", False),
        ("securityContext.runAsUser", 0, "running as user 0", False),
        ("containers.0.securityContext.runAsUser", 0, "running as user 0", False),
        ("securityContext.seccompProfile", None, "seccomp", False),
        ("containers.0.securityContext.allowPrivilegeEscalation", None, "privilege escalation", False),
        ("containers.0.securityContext.capabilities", None, "capabilities", False),
        ("containers.0.securityContext.capabilities.add", ["CHOWN"], "capabilities", False),
    ],
)
def test_each_broken_control_is_found(path: str, value: Any, control: str, is_baseline: bool) -> None:
    assert violations(changed(path, value), "baseline") == ({control} if is_baseline else set())
    assert {control} <= violations(changed(path, value), "restricted")
    assert is_baseline or violations(changed(path, value), "restricted") == {control}
