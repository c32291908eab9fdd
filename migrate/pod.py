"""The pods of a manifest as keys of a spec: what has no key becomes a piece of `kubernetes.pod`."""

from __future__ import annotations

import re
from typing import Any

from jobspec.kubernetes.pod_patch import FREE
from jobspec.spec.secret_names import names_secret
from jobspec.spec.variables import is_set_by_launcher
from lint.manifest import Node
from lint.sbatch import number
from migrate.draft import Draft
from migrate.program import duration

KEYS = {
    "activeDeadlineSeconds": "time_limit",
    "ttlSecondsAfterFinished": "kubernetes.ttl",
    "backoffLimit": "max_restarts",
    "maxRestarts": "max_restarts",
    "nprocPerNode": "procs_per_node",
    "nProcPerNode": "procs_per_node",
    "numProcPerNode": "procs_per_node",
    "nodeSelector": "kubernetes.node_selector",
    "tolerations": "kubernetes.tolerations",
    "imagePullSecrets": "kubernetes.image_pull_secrets",
    "hostNetwork": "kubernetes.host_network",
    "schedulerName": "kubernetes.scheduler",
    "priorityClassName": "kubernetes.priority_class",
    "serviceAccountName": "kubernetes.service_account",
    "image": "image",
    "imagePullPolicy": "kubernetes.image_pull_policy",
    "workingDir": "workdir",
}
"""Fields of a job, its pods and its container, and their keys."""
_NAMES_OF_RENDERED = """
    apiVersion kind restartPolicy subdomain hostname cleanPodPolicy completionMode ports rdzvBackend rdzvPort rdzvHost
    podReplacementPolicy enableDNSHostnames publishNotReadyAddresses numNodes command args name runtimeRef
    terminationGracePeriodSeconds enableServiceLinks automountServiceAccountToken
"""
RENDERED = frozenset(_NAMES_OF_RENDERED.split())
"""Fields that every manifest has, or that an operator sets."""
_MOUNTS = {
    "persistentVolumeClaim": ("claim", "claimName"),
    "hostPath": ("source", "path"),
    "configMap": ("config_map", "name"),
}
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "M": 10**6, "G": 10**9, "T": 10**12, "": 1}


def lines_of(node: Node) -> str:
    first, end = node.key_place.line, node.raw.end_mark
    last = max(first, end.line + (end.column > 0))
    return f"line {first}" if first == last else f"lines {first}-{last}"


def say_field(draft: Draft, key: str, node: Node) -> bool:
    """Say a field that has a key; return False if its value is none for it."""
    value, count = value_of(node), number(node.text())
    if key.endswith("Seconds"):
        value = duration(count) if count else None
    elif KEYS[key] in ("max_restarts", "procs_per_node"):
        value = count
    elif key == "imagePullSecrets":
        value = [each.text("name") for each in node.elements()]
    elif key == "tolerations" and isinstance(value, list):
        value = [{"seconds" if k == "tolerationSeconds" else k: v for k, v in each.items()} for each in value]
    elif key == "nodeSelector":
        value = {name: each.text() for name, each in node.items()}
    if value is not None:
        draft.say(KEYS[key], value, lines_of(node))
    return value is not None


def say_pod(draft: Draft, pod: Node, main: Node | None, runs: Node | None) -> None:
    """Say a pod.  main: the container that trains; runs: that or the trainer, whose command is the program."""
    containers = pod.elements("containers")
    own = [each for each in containers if main and each.text("name") == main.text("name")] or containers[:1]
    _say_volumes(draft, pod, own)
    for key, node in pod.items():
        if key == "containers":
            for each in containers:
                if any(each is one for one in own):
                    say_container(draft, each, runs)
                else:
                    _patch(draft, key, [value_of(each)], lines_of(each))
        elif key in RENDERED:
            draft.lose(f"{key} {node.text()}", lines_of(node))
        elif key in KEYS and say_field(draft, key, node):
            pass
        elif key in FREE and key != "volumes":
            _privileged(draft, node, "securityContext" in key)
            _patch(draft, key, value_of(node), lines_of(node))
        elif key != "volumes":
            draft.lose(f"{key}: {node.text()}", lines_of(node), "no key for it")


def say_container(draft: Draft, container: Node, runs: Node | None) -> None:
    for key, node in container.items():
        if key in ("command", "args") and runs and value_of(node) != value_of(runs.get(key) or node):
            draft.lose(f"{key} {value_of(node)}", lines_of(node), "differs from that of the first pods")
        elif key in RENDERED:
            draft.lose(key, lines_of(node))
        elif key == "env":
            for entry in node.elements():
                _say_variable(draft, entry)
        elif key in ("resources", "resourcesPerNode"):
            _say_resources(draft, node)
        elif key in KEYS and (say_field(draft, key, node) or KEYS[key] == "procs_per_node"):
            pass
        elif key != "volumeMounts":
            _privileged(draft, node, key == "securityContext")
            _patch_node(draft, key, value_of(node), lines_of(node))


def _privileged(draft: Draft, node: Node, is_needed: bool) -> None:
    if is_needed:
        draft.say("kubernetes.security", "privileged", lines_of(node))


def _patch(draft: Draft, key: str, value: Any, where: str) -> None:
    old = draft.get(f"kubernetes.pod.{key}")
    if isinstance(old, list) and isinstance(value, list):
        value = [*old, *(each for each in value if each not in old)]
        where = ", ".join(dict.fromkeys([draft.where(f"kubernetes.pod.{key}"), where]))
        del draft.said["kubernetes", "pod", key]
    draft.say(("kubernetes", "pod", key), value, where)


def _patch_node(draft: Draft, key: str, value: Any, where: str) -> None:
    found = draft.get("kubernetes.pod.containers") or []
    node = next((each for each in found if each.get("name") == "node"), None)
    if node is None:
        _patch(draft, "containers", [{"name": "node", key: value}], where)
    elif isinstance(value, list):
        node[key] = [*node.get(key, []), *(each for each in value if each not in node.get(key, []))]
    else:
        node[key] = {**node.get(key, {}), **value} if isinstance(value, dict) else value


def _say_variable(draft: Draft, entry: Node) -> None:
    name, where, reference = entry.text("name"), lines_of(entry), entry.get("valueFrom", "secretKeyRef")
    if is_set_by_launcher(name):
        draft.lose(name, where)
    elif reference:
        draft.add("secrets", {name: {"secret": reference.text("name"), "key": reference.text("key")}}, where)
    elif entry.get("valueFrom"):
        _patch_node(draft, "env", [value_of(entry)], where)
    elif names_secret(name) and entry.text("value"):
        draft.secret(name, entry.text("value"), where)
    else:
        draft.say(("env", name), entry.text("value"), where)


def _say_resources(draft: Draft, node: Node) -> None:
    limits, requests = dict(node.items("limits")), dict(node.items("requests"))
    for name, each in {**requests, **limits}.items():
        value, where = each.text(), lines_of(each)
        if name.endswith("/gpu") and number(value) is not None:
            if number(value):
                draft.say("gpus_per_node", int(value), where)
            if name != "nvidia.com/gpu":
                draft.say("kubernetes.gpu_resource", name, where)
        elif name == "cpu" and number(value):
            draft.say("resources.cpus", int(value), where)
        elif name == "memory" and (size := _size(value)):
            draft.say("resources.memory", *size[:1], where, size[1])
        elif number(value):
            draft.say(("resources", "devices", name), int(value), where)
        else:
            draft.lose(f"{name}: {value}", where, "not a whole number")
    less = {
        name: each.text() for name, each in requests.items() if name in limits and limits[name].text() != each.text()
    }
    if less:
        _patch_node(draft, "resources", {"requests": less}, lines_of(node))
    for key, each in node.items():
        if key not in ("limits", "requests"):
            _patch_node(draft, "resources", {key: value_of(each)}, lines_of(each))


def _say_volumes(draft: Draft, pod: Node, own: list[Node]) -> None:
    for volume in pod.elements("volumes"):
        name, where = volume.text("name"), lines_of(volume)
        mounts = [mount for each in own for mount in each.elements("volumeMounts") if mount.text("name") == name]
        everywhere = [
            mount
            for key in ("containers", "initContainers")
            for each in pod.elements(key)
            for mount in each.elements("volumeMounts")
        ]
        is_own = sum(mount.text("name") == name for mount in everywhere) == len(mounts)
        kind = next((key for key, _ in volume.items() if key != "name"), "")
        key, field = _MOUNTS.get(kind, ("", ""))
        source = volume.text(kind, field) if key else ""
        if [mount.text("mountPath").rstrip("/") for mount in mounts] == ["/dev/shm"]:
            size = _size(volume.text(kind, "sizeLimit"))
            if size:
                draft.say("resources.shm", size[0], where, size[1])
            else:
                draft.lose("/dev/shm, in the pod's memory", where)
            draft.lose("the mount of /dev/shm", lines_of(mounts[0]))
        elif draft.is_ours:
            draft.lose(f"volume {name}", where)
        elif (
            source
            and mounts
            and is_own
            and len(list(volume.items(kind))) == 1
            and not any(m.get("subPath") for m in mounts)
        ):
            for mount in mounts:
                read_only = {"read_only": True} if mount.text("readOnly") == "true" else {}
                draft.add(
                    "mounts", {key: source, "path": mount.text("mountPath")} | read_only, f"{lines_of(mount)}, {where}"
                )
            _privileged(draft, volume, kind == "hostPath")
        else:
            _patch(draft, "volumes", [value_of(volume)], where)
            _privileged(draft, volume, kind == "hostPath")
            if mounts:
                _patch_node(draft, "volumeMounts", [value_of(mount) for mount in mounts], lines_of(mounts[0]))


def _size(value: str) -> tuple[str, str] | None:
    """Return a size of Kubernetes as a spec writes it, and a remark if it had to be rounded; None if it is none."""
    found = re.fullmatch(r"(\d{1,15})([KMGT]i|[MGT]|)", value)
    size = int(found[1]) * _UNITS[found[2]] if found else 0
    if found and found[2] in ("Mi", "Gi", "Ti"):
        return f"{value}B", ""
    return (f"{size >> 20}MiB", f"{value}, rounded to whole MiB") if size >> 20 else None


def value_of(node: Node) -> Any:
    """Return a value as Kubernetes reads it, with whole numbers as such."""

    def whole(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(key): whole(each) for key, each in value.items()}
        if isinstance(value, list):
            return [whole(each) for each in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return whole(node.plain())
