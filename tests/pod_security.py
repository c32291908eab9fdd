"""The Pod Security Standards as a check of one pod's spec: what `baseline` and `restricted` would refuse.

Source: kubernetes.io/docs/concepts/security/pod-security-standards, the tables of both profiles.  Windows pods and
ephemeral containers are left out; nothing here makes any.
"""

from collections.abc import Iterator
from typing import Any

Spec = dict[str, Any]

_CAPABILITY_NAMES = """
    AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE SETFCAP SETGID SETPCAP SETUID SYS_CHROOT
"""
_BASELINE_CAPABILITIES = set(_CAPABILITY_NAMES.split())
_SYSCTL_NAMES = """
    kernel.shm_rmid_forced net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports
    net.ipv4.ip_unprivileged_port_start net.ipv4.ping_group_range net.ipv4.tcp_fin_timeout net.ipv4.tcp_keepalive_intvl
    net.ipv4.tcp_keepalive_probes net.ipv4.tcp_keepalive_time net.ipv4.tcp_rmem net.ipv4.tcp_syncookies
    net.ipv4.tcp_wmem
"""
_SYSCTLS = set(_SYSCTL_NAMES.split())
_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
_SELINUX_TYPES = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}


def violations(spec: Spec, profile: str) -> set[str]:
    """Names of the controls of a profile that the pod breaks."""
    checks = [_baseline] if profile == "baseline" else [_baseline, _restricted]
    return {control for check in checks for control in check(spec)}


def _baseline(spec: Spec) -> Iterator[str]:
    pod = spec.get("securityContext", {})
    if spec.get("hostNetwork") or spec.get("hostPID") or spec.get("hostIPC"):
        yield "host namespaces"
    if any("hostPath" in volume for volume in spec.get("volumes", [])):
        yield "host path volumes"
    if any(sysctl["name"] not in _SYSCTLS for sysctl in pod.get("sysctls", [])):
        yield "sysctls"
    for context in [pod, *(container.get("securityContext", {}) for container in _containers(spec))]:
        if context.get("privileged"):
            yield "privileged containers"
        if not set(context.get("capabilities", {}).get("add", [])) <= _BASELINE_CAPABILITIES:
            yield "capabilities"
        if context.get("procMount", "Default") != "Default":
            yield "proc mount"
        if context.get("seccompProfile", {}).get("type") == "Unconfined":
            yield "seccomp"
        if context.get("appArmorProfile", {}).get("type") == "Unconfined":
            yield "AppArmor"
        selinux = context.get("seLinuxOptions", {})
        if selinux.get("type", "") not in _SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
            yield "SELinux"
    for container in _containers(spec):
        if any(port.get("hostPort") for port in container.get("ports", [])):
            yield "host ports"


def _restricted(spec: Spec) -> Iterator[str]:
    pod = spec.get("securityContext", {})
    if any(not _VOLUMES & set(volume) for volume in spec.get("volumes", [])):
        yield "volume types"
    if pod.get("runAsUser") == 0:
        yield "running as user 0"
    for container in _containers(spec):
        own = container.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False:
            yield "privilege escalation"
        if not own.get("runAsNonRoot", pod.get("runAsNonRoot")):
            yield "running as root"
        if own.get("runAsUser") == 0:
            yield "running as user 0"
        if own.get("seccompProfile", pod.get("seccompProfile", {})).get("type") not in ("RuntimeDefault", "Localhost"):
            yield "seccomp"
        capabilities = own.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", []) or not set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"}:
            yield "capabilities"


def _containers(spec: Spec) -> list[Spec]:
    return [*spec.get("initContainers", []), *spec["containers"]]
