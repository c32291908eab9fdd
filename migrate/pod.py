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
    inside = pod.elements("containers")
    own = [each for each in inside if main and each.text("name") == main.text("name")] or inside[:1]
    shm = {mount.text("name") for each in own for mount in each.elements("volumeMounts") if _is_shm(mount)}
    for key, node in pod.items():
        if key == "containers":
            say_containers(draft, own, [value_of(each) for each in inside if each not in own], runs, lines_of(node))
        elif key == "volumes":
            for each in (each for each in node.elements() if each.text("name") in shm):
                size = each.text("emptyDir", "sizeLimit")
                if _SIZE.fullmatch(size):
                    draft.say("resources.shm", f"{size}B", lines_of(each))
                else:
                    draft.lose(f"/dev/shm in the pod's memory {size}", lines_of(each))
            _say_piece(draft, key, [value_of(x) for x in node.elements() if x.text("name") not in shm], lines_of(node))
        elif not say_field(draft, key, node):
            if key in FREE:
                _say_piece(draft, key, value_of(node), lines_of(node))
            else:
                draft.lose(f"{key}: {node.text()}", lines_of(node), "no key for it")


def say_containers(draft: Draft, own: list[Node], others: list[Any], runs: Node | None, where: str) -> None:
    """Say the containers of a pod, or the trainer of a TrainJob; own: those that train."""
    rest: dict[str, Any] = {}
    for key, node in (item for each in own for item in each.items()):
        if key in ("command", "args") and runs and value_of(node) != value_of(runs.get(key) or node):
            draft.lose(f"{key} {value_of(node)}", lines_of(node), "differs from that of the first pods")
        elif key == "env":
            rest[key] = [value_of(entry) for entry in node.elements() if not _say_variable(draft, entry)]
        elif key in ("resources", "resourcesPerNode"):
            rest["resources"] = _say_resources(draft, node)
        elif key == "volumeMounts":
            rest[key] = [value_of(each) for each in node.elements() if not _is_shm(each)]
        elif not say_field(draft, key, node):
            rest[key] = value_of(node)
    rest = {key: value for key, value in rest.items() if value not in ([], {})}
    _say_piece(draft, "containers", [{"name": "node", **rest}] * bool(rest) + others, where)


def _is_shm(mount: Node) -> bool:
    return mount.text("mountPath").rstrip("/") == "/dev/shm"


def _say_piece(draft: Draft, key: str, value: Any, where: str) -> None:
    """Say a piece of `kubernetes.pod`.  A pod with host folders or a securityContext of its own is privileged."""
    if re.search("hostPath|securityContext", f"{key} {value}"):
        draft.say("kubernetes.security", "privileged", where)
    if value != []:
        draft.say(("kubernetes", "pod", key), value, where)


def _say_variable(draft: Draft, entry: Node) -> bool:
    """Say a variable; return False if it takes its value from the pod."""
    name, where, reference = entry.text("name"), lines_of(entry), entry.get("valueFrom", "secretKeyRef")
    if is_set_by_launcher(name):
        draft.lose(name, where)
    elif reference:
        draft.add("secrets", {name: {"secret": reference.text("name"), "key": reference.text("key")}}, where)
    elif names_secret(name) and entry.text("value"):
        draft.say_secret(name, entry.text("value"), where)
    elif not entry.get("valueFrom"):
        draft.say(("env", name), entry.text("value"), where)
    return is_set_by_launcher(name) or bool(reference) or not entry.get("valueFrom")


def _say_resources(draft: Draft, node: Node) -> dict[str, Any]:
    """Say limits; return what a spec has no key for."""
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
    less = {name: each.text() for name, each in requests.items() if limits.get(name, each).text() != each.text()}
    for name, each in requests.items():
        draft.lose(f"request of {name} {each.text()}", lines_of(each))
    rest = {key: value_of(each) for key, each in node.items() if key not in ("limits", "requests")}
    return rest | ({"requests": less} if less else {})


def value_of(node: Node) -> Any:
    """Return a value as Kubernetes reads it, with whole numbers as such."""
    text = json.dumps(node.plain(), default=str)
    return json.loads(text, parse_float=lambda text: int(float(text)) if float(text).is_integer() else float(text))
