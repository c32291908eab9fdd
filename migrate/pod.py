"""The pods of a manifest as keys of a spec: containers, variables, resources and volumes."""

from __future__ import annotations

import re
from typing import Any

from jobspec.kubernetes.pod_patch import FREE
from jobspec.spec.secret_names import names_secret
from jobspec.spec.variables import is_set_by_launcher
from lint.manifest import Node
from lint.sbatch import number
from migrate.draft import Draft, both
from migrate.program import duration

POD = {
    "nodeSelector": "kubernetes.node_selector",
    "hostNetwork": "kubernetes.host_network",
    "schedulerName": "kubernetes.scheduler",
    "priorityClassName": "kubernetes.priority_class",
    "serviceAccountName": "kubernetes.service_account",
    "serviceAccount": "kubernetes.service_account",
    "securityContext.runAsUser": "kubernetes.run_as_user",
    "securityContext.fsGroup": "kubernetes.fs_group",
    "image": "image",
    "imagePullPolicy": "kubernetes.image_pull_policy",
    "workingDir": "workdir",
    "securityContext": "kubernetes.security",
    "tolerations": "kubernetes.tolerations",
    "imagePullSecrets": "kubernetes.image_pull_secrets",
    "terminationGracePeriodSeconds": "preemption.grace",
}
"""Fields of a pod and of its container, and their keys; any other is one of `kubernetes.pod`."""
_NAMES_OF_RENDERED = """
    apiVersion kind restartPolicy subdomain hostname cleanPodPolicy completionMode completions suspend ports rdzvBackend
    podReplacementPolicy enableDNSHostnames publishNotReadyAddresses rdzvPort rdzvHost
"""
RENDERED = frozenset(_NAMES_OF_RENDERED.split())
"""Fields that every manifest has, or that an operator sets."""
_SIZE = re.compile(r"(\d+)(Mi|Gi|Ti)")
_DECIMAL = {"K": 10**3, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 1 << 10, "": 1}


class PodReader:
    """Reads pods into a draft; `done` holds the nodes that a key stands for, so that all others can be named.

    words: command and args of the first pods.  several: the source is more than one file.
    """

    def __init__(self, draft: Draft, several: bool) -> None:
        self.draft, self.several = draft, several
        self.done: set[int] = set()
        self.words: dict[str, Any] = {}

    def where(self, node: Node) -> str:
        first, end = node.key_place.line, node.raw.end_mark
        last = max(first, end.line + (end.column > 0))
        lines = f"line {first}" if first == last else f"lines {first}-{last}"
        return f"{node.file} {lines}" if self.several else lines

    def line(self, node: Node) -> str:
        """Return the place where a value begins; `where` gives all its lines."""
        return re.sub(r"lines (\d+)-\d+", r"line \1", self.where(node))

    def take(self, node: Node | None) -> Node | None:
        if node is not None:
            self.done.add(id(node.raw))
        return node

    def pod(self, pod: Node, main: Node | None) -> None:
        draft = self.draft
        self.take(pod)
        for key, node in pod.items():
            where = self.where(node)
            if key == "containers":
                for each in node.elements():
                    if main is not None and each.raw is main.raw:
                        continue
                    if (main is not None and each.text("name") == main.text("name")) or each.text("name") == "node":
                        self.container(each)
                    else:
                        self._patch("containers", [value_of(each)], self.where(each))
            elif key == "tolerations":
                for each in node.elements():
                    taint = {("seconds" if k == "tolerationSeconds" else k): value_of(v) for k, v in each.items()}
                    draft.add("kubernetes.tolerations", taint, self.where(each))
            elif key == "imagePullSecrets":
                for each in node.elements():
                    draft.add("kubernetes.image_pull_secrets", each.text("name"), self.where(each))
            elif key == "nodeSelector":
                for name, value in node.items():
                    draft.say_in("kubernetes.node_selector", name, value.text(), self.where(value))
            elif key == "terminationGracePeriodSeconds":
                if number(node.text()) not in (30, 120) and number(node.text()):
                    draft.say("preemption.grace", duration(int(node.text())), where)
                else:
                    draft.rendered.append(f"{where}: {key} {node.text()}")
            elif key == "securityContext":
                self._security(node)
            elif key == "volumes":
                self._volumes(node, pod, main)
            elif key in POD:
                draft.say(POD[key], value_of(node), where)
            elif key in RENDERED or (
                key in ("enableServiceLinks", "automountServiceAccountToken") and node.text() == "false"
            ):
                draft.rendered.append(f"{where}: {key}")
            elif key in FREE:
                self._patch(key, value_of(node), where)
            else:
                draft.lose("kubernetes.pod", key, where, "no key for it")

    def _patch(self, key: str, value: Any, where: str) -> None:
        old = self.draft.said.get(("kubernetes", "pod", key))
        if old is not None and isinstance(value, list) and isinstance(getattr(old, "value", None), list):
            old.value += [each for each in value if each not in old.value]  # type: ignore[union-attr]
            self.draft.join(old, where)
        else:
            self.draft.say_in("kubernetes.pod", key, value, where)

    def _patch_node(self, key: str, value: Any, where: str) -> None:
        old = self.draft.said.get(("kubernetes", "pod", "containers"))
        mine = next((each for each in getattr(old, "value", []) if each.get("name") == "node"), None)
        if mine is None:
            self._patch("containers", [mine := {"name": "node"}], where)
        else:
            self.draft.join(old, where)
        if isinstance(value, list):
            mine[key] = [*mine.get(key, []), *(each for each in value if each not in mine.get(key, []))]
        else:
            mine[key] = {**mine.get(key, {}), **value} if isinstance(value, dict) else value

    def _security(self, node: Node) -> None:
        for key, each in node.items():
            if f"securityContext.{key}" in POD and number(each.text()) is not None:
                self.draft.say(POD[f"securityContext.{key}"], int(each.text()), self.where(each))
            elif key == "runAsNonRoot" and each.text() == "true":
                self.draft.say("kubernetes.security", "restricted", self.where(each))
            elif key in ("seccompProfile", "allowPrivilegeEscalation") or (
                key == "capabilities" and not each.get("add")
            ):
                self.draft.rendered.append(f"{self.where(each)}: securityContext.{key}")
            else:
                self.draft.say("kubernetes.security", "privileged", self.where(each))
                self._patch_node("securityContext", {key: value_of(each)}, self.where(each))

    def container(self, container: Node) -> None:
        draft = self.draft
        self.take(container)
        for key, node in container.items():
            where = self.where(node)
            if key in ("command", "args") and value_of(node) == self.words.setdefault(key, value_of(node)):
                draft.rendered.append(f"{where}: {key}")
            elif key in ("command", "args"):
                draft.lose("command", f"{key} {value_of(node)}", where, "differs from that of the first pods")
            if key == "env":
                for entry in node.elements():
                    self._variable(entry)
            elif key in ("resources", "resourcesPerNode"):
                self._resources(node)
            elif key == "securityContext":
                self._security(node)
            elif key == "name" or key in RENDERED:
                draft.rendered.append(f"{where}: {key}")
            elif key in ("numNodes", "command", "args", "volumeMounts"):
                pass
            elif key == "numProcPerNode":
                if number(node.text()):
                    draft.say("procs_per_node", int(node.text()), where)
                else:
                    draft.rendered.append(f"{where}: {key} {node.text()}, which the GPUs decide")
            elif key in POD:
                draft.say(POD[key], node.text(), where)
            else:
                self._patch_node(key, value_of(node), where)

    def _variable(self, entry: Node) -> None:
        draft, name, where = self.draft, entry.text("name"), self.where(entry)
        reference = entry.get("valueFrom", "secretKeyRef")
        if is_set_by_launcher(name):
            draft.rendered.append(f"{where}: {name}")
        elif reference:
            value = {name: {"secret": reference.text("name"), "key": reference.text("key")}}
            draft.add("secrets", value, where)
        elif entry.get("valueFrom"):
            self._patch_node("env", [value_of(entry)], where)
        elif names_secret(name) and entry.text("value"):
            draft.secret(name, entry.text("value"), where)
        else:
            draft.say_in("env", name, entry.text("value"), where)

    def _resources(self, node: Node) -> None:
        draft = self.draft
        limits, requests = dict(node.get("limits").items()) if node.get("limits") else {}, node.get("requests")  # type: ignore[union-attr]
        lower = {name: each for name, each in requests.items()} if requests else {}
        less: dict[str, str] = {}
        for name, each in {**lower, **limits}.items():
            value, where = each.text(), self.where(each)
            where = both(where, self.where(lower[name])) if name in limits and name in lower else where
            if name in limits and name in lower and lower[name].text() != value:
                less[name] = lower[name].text()
            if name.endswith("/gpu"):
                if name != "nvidia.com/gpu":
                    draft.say("kubernetes.gpu_resource", name, where)
                if number(value):
                    draft.say("gpus_per_node", int(value), where)
                elif value != "0":
                    draft.lose("gpus_per_node", f"{name}: {value}", where, "not a number")
            elif name == "cpu" and number(value):
                draft.say("resources.cpus", int(value), where)
            elif name.startswith("rdma/"):
                draft.say("resources.rdma", True, where)
                draft.say("kubernetes.rdma_resource", name, where)
            elif name == "memory" or name == "ephemeral-storage" or name.startswith("hugepages-"):
                size, remark = _size(value)
                if not size:
                    draft.lose("resources", f"{name}: {value}", where, "not whole MiB")
                elif name == "memory":
                    draft.say("resources.memory", size, where, remark)
                else:
                    draft.say_in("resources.devices", name, size, where, remark)
            elif name != "cpu" and number(value):
                draft.say_in("resources.devices", name, int(value), where)
            else:
                draft.lose("resources", f"{name}: {value}", where, "not a whole number")
        if less:
            self._patch_node("resources", {"requests": less}, self.where(node))
        for key, each in node.items():
            if key not in ("limits", "requests"):
                self._patch_node("resources", {key: value_of(each)}, self.where(each))

    def _volumes(self, volumes: Node, pod: Node, main: Node | None) -> None:
        draft = self.draft
        others = [each for key in ("initContainers", "containers") for each in pod.elements(key)]
        shared = {
            m.text("name")
            for each in others
            if main is None or each.raw is not main.raw
            for m in each.elements("volumeMounts")
        }
        own = [*(main.elements("volumeMounts") if main else []), *self._node_mounts(pod, main)]
        for volume in volumes.elements():
            name, where = volume.text("name"), self.where(volume)
            used = [mount for mount in own if mount.text("name") == name]
            paths = {mount.text("mountPath").rstrip("/") for mount in used}
            if paths == {"/dev/shm"}:
                size, remark = _size(volume.text("emptyDir", "sizeLimit"))
                draft.rendered += [f"{self.where(mount)}: the mount of /dev/shm" for mount in used]
                if size:
                    draft.say("resources.shm", size, where, remark)
                else:
                    draft.rendered.append(f"{where}: /dev/shm, in memory of the pod")
                continue
            if name == "home" and paths == {"/scratch"} and volume.get("emptyDir"):
                draft.rendered.append(f"{where}: /scratch, the HOME")
                continue
            kind = next((_mountable(key, node) for key, node in volume.items() if key != "name"), None)
            simple = all(
                {key for key, _ in mount.items()} <= {"name", "mountPath", "subPath", "readOnly"} for mount in used
            )
            if kind and simple and used and name not in shared:
                for mount in used:
                    value: dict[str, Any] = {**kind, "path": mount.text("mountPath")}
                    value |= {"sub_path": mount.text("subPath")} if mount.get("subPath") else {}
                    value |= (
                        {"read_only": True}
                        if "true" in (mount.text("readOnly"), volume.text("persistentVolumeClaim", "readOnly"))
                        else {}
                    )
                    draft.add("mounts", value, f"{self.where(mount)}, {where}")
                if "source" in kind:
                    draft.say("kubernetes.security", "privileged", where, "for a folder of the node")
            else:
                self._patch("volumes", [value_of(volume)], where)
                if volume.get("hostPath"):
                    draft.say("kubernetes.security", "privileged", where, "for a folder of the node")
                for mount in used:
                    self._patch_node("volumeMounts", [value_of(mount)], self.where(mount))

    def _node_mounts(self, pod: Node, main: Node | None) -> list[Node]:
        found = [each for each in pod.elements("containers") if main is None or each.raw is not main.raw]
        return [
            mount
            for each in found
            if each.text("name") in ("node", main.text("name") if main else "")
            for mount in each.elements("volumeMounts")
        ]


def _mountable(key: str, node: Node) -> dict[str, str] | None:
    names = {name for name, _ in node.items()}
    if key == "persistentVolumeClaim":
        return {"claim": node.text("claimName")}
    if key == "hostPath" and re.fullmatch(r"/[^:,\"\\$]*", node.text("path")):
        return {"source": node.text("path")}
    if key == "emptyDir" and names == {"sizeLimit"} and _size(node.text("sizeLimit"))[0]:
        return {"scratch": _size(node.text("sizeLimit"))[0]}
    if key == "configMap" and names == {"name"}:
        return {"config_map": node.text("name")}
    if key == "secret" and names == {"secretName"}:
        return {"secret": node.text("secretName")}
    return None


def _size(value: str) -> tuple[str, str]:
    """Return a size of Kubernetes as a spec writes it, and a remark if it had to be rounded; empty if it is none."""
    if found := _SIZE.fullmatch(value):
        return f"{found[1]}{found[2]}B", ""
    found = re.fullmatch(r"(\d+)([KkMGT]|Ki|)", value)
    mib = int(found[1]) * _DECIMAL[found[2]] >> 20 if found else 0
    return (f"{mib}MiB", f"{value}, rounded to whole MiB") if mib else ("", "")


def value_of(node: Node) -> Any:
    """Return a value as Kubernetes reads it, with whole numbers as such."""

    def whole(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(key): whole(each) for key, each in value.items()}
        if isinstance(value, list):
            return [whole(each) for each in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return whole(node.plain())
