"""The pods of a manifest as keys of a spec: what has no key becomes a piece of `kubernetes.pod`."""

from __future__ import annotations

import json
import re
from typing import Any

from jobspec.kubernetes.pod_patch import FREE
from jobspec.spec.secret_names import names_secret
from jobspec.spec.variables import is_set_by_launcher
from lint.manifest import Node
from lint.sbatch import number
from migrate.draft import Draft, duration

_NAMES_OF_KEYS = """
    activeDeadlineSeconds=time_limit ttlSecondsAfterFinished=kubernetes.ttl image=image workingDir=workdir
    backoffLimit=max_restarts maxRestarts=max_restarts nprocPerNode=procs_per_node nProcPerNode=procs_per_node
    numProcPerNode=procs_per_node nodeSelector=kubernetes.node_selector tolerations=kubernetes.tolerations
    imagePullSecrets=kubernetes.image_pull_secrets hostNetwork=kubernetes.host_network
    schedulerName=kubernetes.scheduler priorityClassName=kubernetes.priority_class
    serviceAccountName=kubernetes.service_account imagePullPolicy=kubernetes.image_pull_policy
"""
KEYS = dict(pair.split("=") for pair in _NAMES_OF_KEYS.split())
"""Fields of a job, its pods and its container, and their keys."""
_NAMES_OF_RENDERED = """
    apiVersion kind restartPolicy subdomain hostname cleanPodPolicy completionMode ports rdzvBackend rdzvPort rdzvHost
    podReplacementPolicy enableDNSHostnames publishNotReadyAddresses command args name runtimeRef suspend
    terminationGracePeriodSeconds enableServiceLinks automountServiceAccountToken
    replicas parallelism completions numNodes minReplicas maxReplicas
"""
_RENDERED = frozenset(_NAMES_OF_RENDERED.split())
"""Fields that every manifest has, that an operator sets, or that other code here reads."""

_SIZE = re.compile(r"\d+[MGT]i")


def lines_of(node: Node) -> str:
    first, end = node.key_place.line, node.raw.end_mark
    last = max(first, end.line + (end.column > 0))
    return f"line {first}" if first == last else f"lines {first}-{last}"


def say_field(draft: Draft, key: str, node: Node) -> bool:
    """Say or name a field that needs no thought; return False for any other."""
    value, count = value_of(node), number(node.text())
    if key in _RENDERED:
        draft.lose(f"{key} {node.text()}", lines_of(node))
    elif key in KEYS:
        if key.endswith("Seconds"):
            value = duration(count) if count else None
        elif KEYS[key] in ("max_restarts", "procs_per_node"):
            value = count
        elif key == "imagePullSecrets":
            value = [each.text("name") for each in node.elements()]
        elif key == "tolerations":
            value = [{k.replace("tolerationS", "s"): value_of(v) for k, v in one.items()} for one in node.elements()]
        elif key == "nodeSelector":
            value = {name: each.text() for name, each in node.items()}
        if value is None:
            draft.lose(f"{key}: {node.text()}", lines_of(node), f"no value for {KEYS[key]}")
        else:
            draft.say(KEYS[key], value, lines_of(node))
    return key in _RENDERED or key in KEYS


def say_pod(draft: Draft, pod: Node, main: Node | None, runs: Node | None) -> None:
    """Say a pod.  main: the container that trains; runs: that or the trainer, whose command is the program."""
    containers = pod.elements("containers")
    own = [each for each in containers if main and each.text("name") == main.text("name")] or containers[:1]
    for key, node in pod.items():
        if key == "containers":
            for each in containers:
                if any(each is one for one in own):
                    say_container(draft, each, runs)
                else:
                    _patch(draft, key, [value_of(each)], lines_of(each))
        elif key == "volumes":
            _say_volumes(draft, node, own)
        elif not say_field(draft, key, node):
            if key not in FREE:
                draft.lose(f"{key}: {node.text()}", lines_of(node), "no key for it")
            else:
                _patch(draft, key, value_of(node), lines_of(node))


def say_container(draft: Draft, container: Node, runs: Node | None) -> None:
    """Say a container, or the trainer of a TrainJob."""
    for key, node in container.items():
        if key in ("command", "args") and runs and value_of(node) != value_of(runs.get(key) or node):
            draft.lose(f"{key} {value_of(node)}", lines_of(node), "differs from that of the first pods")
        elif key == "env":
            for entry in node.elements():
                _say_variable(draft, entry)
        elif key in ("resources", "resourcesPerNode"):
            _say_resources(draft, node)
        elif key == "volumeMounts":
            shm = [each for each in node.elements() if each.text("mountPath").rstrip("/") == "/dev/shm"]
            for each in shm:
                draft.lose("the mount of /dev/shm", lines_of(each))
            if others := [value_of(each) for each in node.elements() if each not in shm]:
                _patch_node(draft, key, others, lines_of(node))
        elif not say_field(draft, key, node):
            _patch_node(draft, key, value_of(node), lines_of(node))


def _patch(draft: Draft, key: str, value: Any, where: str) -> None:
    """Add to `kubernetes.pod`.  A pod with host folders or a securityContext of its own is privileged."""
    if "hostPath" in str(value) or "securityContext" in (key, *(value[0] if isinstance(value, list) and value else ())):
        draft.say("kubernetes.security", "privileged", where)
    old = draft.said.get(("kubernetes", "pod", key))
    if old and isinstance(old.value, list) and isinstance(value, list):
        old.value += [each for each in value if each not in old.value]
        draft.say(("kubernetes", "pod", key), old.value, where)
    else:
        draft.say(("kubernetes", "pod", key), value, where)


def _patch_node(draft: Draft, key: str, value: Any, where: str) -> None:
    found = draft.get("kubernetes.pod.containers") or []
    node: dict[str, Any] = next((each for each in found if each.get("name") == "node"), {"name": "node"})
    old = node.get(key)
    if isinstance(old, list) and isinstance(value, list):
        value = [*old, *(each for each in value if each not in old)]
    node[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    _patch(draft, "containers", [node], where)


def _say_variable(draft: Draft, entry: Node) -> None:
    name, where, reference = entry.text("name"), lines_of(entry), entry.get("valueFrom", "secretKeyRef")
    if is_set_by_launcher(name):
        draft.lose(name, where)
    elif reference:
        draft.add("secrets", {name: {"secret": reference.text("name"), "key": reference.text("key")}}, where)
    elif entry.get("valueFrom"):
        _patch_node(draft, "env", [value_of(entry)], where)
    elif names_secret(name) and entry.text("value"):
        draft.say_secret(name, entry.text("value"), where)
    else:
        draft.say(("env", name), entry.text("value"), where)


def _say_resources(draft: Draft, node: Node) -> None:
    limits, requests = dict(node.items("limits")), dict(node.items("requests"))
    for name, each in {**requests, **limits}.items():
        value, count, where = each.text(), number(each.text()), lines_of(each)
        if name.endswith("/gpu"):
            draft.say("gpus_per_node", value if count is None else count, where)
            if name != "nvidia.com/gpu":
                draft.say("kubernetes.gpu_resource", name, where)
        elif name == "memory" and _SIZE.fullmatch(value):
            draft.say("resources.memory", f"{value}B", where)
        elif name != "memory" and count:
            draft.say("resources.cpus" if name == "cpu" else ("resources", "devices", name), count, where)
        else:
            draft.lose(f"{name}: {value}", where, "not a whole number or size")
    rest = {key: value_of(each) for key, each in node.items() if key not in ("limits", "requests")}
    less = {name: each.text() for name, each in requests.items() if limits.get(name, each).text() != each.text()}
    if rest or less:
        _patch_node(draft, "resources", {"requests": less, **rest}, lines_of(node))
    for name, each in requests.items() if not less else ():
        draft.lose(f"requests of {name}, which are the limits", lines_of(each))


def _say_volumes(draft: Draft, volumes: Node, own: list[Node]) -> None:
    mounts = [mount for each in own for mount in each.elements("volumeMounts")]
    shm = {mount.text("name") for mount in mounts if mount.text("mountPath").rstrip("/") == "/dev/shm"}
    for volume in volumes.elements():
        size = volume.text("emptyDir", "sizeLimit")
        if volume.text("name") not in shm:
            _patch(draft, "volumes", [value_of(volume)], lines_of(volume))
        elif _SIZE.fullmatch(size):
            draft.say("resources.shm", f"{size}B", lines_of(volume))
        else:
            draft.lose(f"/dev/shm in the pod's memory {size}", lines_of(volume))


def value_of(node: Node) -> Any:
    """Return a value as Kubernetes reads it, with whole numbers as such."""
    text = json.dumps(node.plain(), default=str)
    return json.loads(text, parse_float=lambda text: int(float(text)) if float(text).is_integer() else float(text))
