"""A manifest with one training job as a draft of a spec: PyTorchJob, TrainJob, JobSet or Job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jobspec.kubernetes.pod_patch import FREE
from jobspec.problems import Place, Problem, SpecError
from jobspec.spec.secret_names import names_secret
from jobspec.spec.variables import is_set_by_launcher
from lint.manifest import Node, documents
from lint.pods import Group, groups, started
from lint.sbatch import number
from migrate.draft import Draft, both
from migrate.program import duration, say_around, say_command, say_processes
from migrate.shell import Program

TARGETS = {"PyTorchJob": "pytorchjob", "TrainJob": "trainjob", "JobSet": "jobset", "Job": "indexedjob"}
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
JOB = {
    "activeDeadlineSeconds": "time_limit",
    "ttlSecondsAfterFinished": "kubernetes.ttl",
    "backoffLimit": "max_restarts",
    "maxRestarts": "max_restarts",
    "nprocPerNode": "procs_per_node",
    "numProcPerNode": "procs_per_node",
    "numNodes": "nodes",
    "replicas": "nodes",
    "parallelism": "nodes",
    "minReplicas": "nodes",
    "maxReplicas": "nodes",
}
"""Fields of a workload above its pods, and their keys."""
METADATA = {
    "kueue.x-k8s.io/queue-name": "kubernetes.queue",
    "kueue.x-k8s.io/priority-class": "kubernetes.workload_priority_class",
    "kueue.x-k8s.io/podset-required-topology": "kubernetes.topology.required",
    "kueue.x-k8s.io/podset-preferred-topology": "kubernetes.topology.preferred",
}
_NAMES_OF_RENDERED = """
    apiVersion kind restartPolicy subdomain hostname cleanPodPolicy completionMode completions suspend ports rdzvBackend
    podReplacementPolicy enableDNSHostnames publishNotReadyAddresses rdzvPort rdzvHost
"""
_RENDERED = frozenset(_NAMES_OF_RENDERED.split())
_OURS = re.compile(
    r"app\.kubernetes\.io/|trainer\.kubeflow\.org/|sidecar\.istio\.io/inject|karpenter\.sh/do-not-disrupt"
    r"|cluster-autoscaler\.kubernetes\.io/safe-to-evict"
)
_SIZE = re.compile(r"(\d+)(Mi|Gi|Ti)")
_DECIMAL = {"K": 10**3, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 1 << 10, "": 1}


def read_manifests(texts: Mapping[str, str]) -> Draft:
    """Return the draft of the first training job in some manifests.  Raises SpecError if there is none."""
    found = [each for file, text in texts.items() for one in documents(text, file) for each in _items(one)]
    jobs = [each for each in found if each.text("kind") in TARGETS and "volcano" not in each.text("apiVersion")]
    if not jobs:
        first = next(iter(texts))
        message = f"no {', '.join(TARGETS)} is in this manifest"
        raise SpecError([Problem(Place(first, 1, 1, 1, ""), message, "give the manifest of the training job")])
    job = next((each for each in jobs if each.text("kind") != "Job"), jobs[0])
    draft = Draft(" ".join(texts), TARGETS[job.text("kind")])
    for text in texts.values():
        draft.keep_secrets_of(text)
    _Manifest(draft, job, found, several=len(texts) > 1).read()
    return draft


def _items(document: Node) -> list[Node]:
    return document.elements("items") if document.text("kind") == "List" else [document]


class _Manifest:
    """Reads one job; `done` holds the nodes that a key stands for, so that all others can be named."""

    def __init__(self, draft: Draft, job: Node, found: list[Node], several: bool) -> None:
        self.draft, self.job, self.found, self.several = draft, job, found, several
        self.done: set[int] = set()
        self.words: dict[str, Any] = {}
        runtime = job.text("spec", "runtimeRef", "name")
        own = [each for each in found if each.text("kind").endswith("TrainingRuntime")]
        self.runtime = next((each for each in own if each.text("metadata", "name") == runtime), None)

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

    def read(self) -> None:
        draft, job = self.draft, self.job
        for other in self.found:
            if other is job or other is self.runtime:
                continue
            text = f"{other.text('kind')} {other.text('metadata', 'name')}"
            if other.text("kind") == "Service" and other.text("spec", "clusterIP") == "None":
                draft.rendered.append(f"{self.where(other)}: {text}")
            else:
                draft.lose("kubernetes", text, self.where(other), "another object: apply it apart from the job")
        self._metadata(job)
        owners = [each for each in (self.runtime, job) if each is not None]
        all_groups = [group for owner in owners for group in groups(owner)]
        trainer = job.get("spec", "trainer")
        pods = [group.template.get("spec") for group in all_groups]
        container = self._container(pods)
        self._nodes(all_groups)
        for group in all_groups:
            self._metadata(group.template)
        first = trainer if trainer and (trainer.get("command") or trainer.get("args")) else container
        for key in ("command", "args"):
            if first is not None and (words := first.get(key)):
                self.words[key] = _value(words)
        for pod in [*pods, *self._patches()]:
            if pod is not None:
                self._pod(pod, container)
        for each in filter(None, (container, trainer)):
            self._of_container(each)
        self._program(first)
        for owner in owners:
            self._rest(owner, ())

    def _metadata(self, owner: Node) -> None:
        draft, metadata = self.draft, owner.get("metadata")
        for key, node in metadata.items() if metadata else ():
            if owner is self.job and key in ("name", "generateName"):
                draft.say("name", node.text().rstrip("-"), self.where(node), "" if key == "name" else "generateName")
            elif owner is self.job and key == "namespace":
                draft.say("kubernetes.namespace", node.text(), self.where(node))
            elif key in ("labels", "annotations"):
                for name, value in node.items():
                    if name in METADATA:
                        draft.say(METADATA[name], value.text(), self.where(value))
                    elif _OURS.match(name):
                        draft.rendered.append(f"{self.where(value)}: {name}")
                    else:
                        draft.say_in(f"kubernetes.{key}", name, value.text(), self.where(value))
            elif key != "name" and key != "creationTimestamp":
                draft.lose("kubernetes", f"metadata.{key}", self.where(node), "no key for it")
        self.take(metadata)

    def _container(self, pods: list[Node | None]) -> Node | None:
        found = [each for pod in pods if pod for each in pod.elements("containers")]
        gpus = [each for each in found if _has_gpus(each)]
        named = [each for each in found if each.text("name") in ("pytorch", "node", "trainer")]
        return next(iter([*gpus, *named, *found]), None)

    def _nodes(self, all_groups: list[Group]) -> None:
        draft, spec = self.draft, self.job.get("spec")
        elastic = self.take(spec.get("elasticPolicy")) if spec else None
        if elastic and number(elastic.text("minReplicas")) and number(elastic.text("maxReplicas")):
            value = {"min": int(elastic.text("minReplicas")), "max": int(elastic.text("maxReplicas"))}
            draft.say("nodes", value if value["min"] != value["max"] else value["max"], self.where(elastic))
            for key, node in elastic.items():
                if key in ("maxRestarts", "nProcPerNode") and number(node.text()) is not None:
                    draft.say(
                        "max_restarts" if key == "maxRestarts" else "procs_per_node", int(node.text()), self.where(node)
                    )
                elif key not in ("minReplicas", "maxReplicas", *_RENDERED):
                    draft.lose("nodes", f"elasticPolicy.{key}", self.where(node), "no key for it")
            return
        sizes = [(number(group.size) if group.size else 1) for group in all_groups]
        if spec and (
            given := spec.get("trainer", "numNodes")
            or (self.runtime and self.runtime.get("spec", "mlPolicy", "numNodes"))
        ):
            sizes = [number(given.text())]
            draft.rendered.append(f"{self.where(given)}: numNodes, which is nodes")
        where = ", ".join(dict.fromkeys(self.line(group.template) for group in all_groups)) or self.line(self.job)
        jobs = spec.elements("replicatedJobs") if spec else []
        times = [number(each.text("replicas")) or 1 for each in jobs] or [1] * len(sizes)
        if None in sizes or not sizes:
            draft.lose("nodes", "the number of pods", where, "not a number")
        else:
            total = sum(size * times[at] if at < len(times) else size for at, size in enumerate(sizes) if size)
            draft.say("nodes", total, where, f"{len(sizes)} groups of pods become one" if len(sizes) > 1 else "")

    def _patches(self) -> Iterator[Node]:
        spec = self.job.get("spec")
        for override in spec.elements("podTemplateOverrides") if spec else []:
            if (pod := override.get("spec")) is not None:
                yield pod
        for patch in spec.elements("runtimePatches") if spec else []:
            for each in patch.elements("trainingRuntimeSpec", "template", "spec", "replicatedJobs"):
                if (pod := each.get("template", "spec", "template", "spec")) is not None:
                    self._metadata(each.get("template", "spec", "template") or pod)
                    yield pod

    def _pod(self, pod: Node, main: Node | None) -> None:
        draft = self.draft
        self.take(pod)
        for key, node in pod.items():
            where = self.where(node)
            if key == "containers":
                for each in node.elements():
                    if main is not None and each.raw is main.raw:
                        continue
                    if (main is not None and each.text("name") == main.text("name")) or each.text("name") == "node":
                        self._of_container(each)
                    else:
                        self._patch("containers", [_value(each)], self.where(each))
            elif key == "tolerations":
                for each in node.elements():
                    taint = {("seconds" if k == "tolerationSeconds" else k): _value(v) for k, v in each.items()}
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
                draft.say(POD[key], _value(node), where)
            elif key in _RENDERED or (
                key in ("enableServiceLinks", "automountServiceAccountToken") and node.text() == "false"
            ):
                draft.rendered.append(f"{where}: {key}")
            elif key in FREE:
                self._patch(key, _value(node), where)
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
                self._patch_node("securityContext", {key: _value(each)}, self.where(each))

    def _of_container(self, container: Node) -> None:
        draft = self.draft
        self.take(container)
        for key, node in container.items():
            where = self.where(node)
            if key in ("command", "args") and _value(node) == self.words.setdefault(key, _value(node)):
                draft.rendered.append(f"{where}: {key}")
            elif key in ("command", "args"):
                draft.lose("command", f"{key} {_value(node)}", where, "differs from that of the first pods")
            if key == "env":
                for entry in node.elements():
                    self._variable(entry)
            elif key in ("resources", "resourcesPerNode"):
                self._resources(node)
            elif key == "securityContext":
                self._security(node)
            elif key == "name" or key in _RENDERED:
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
                self._patch_node(key, _value(node), where)

    def _variable(self, entry: Node) -> None:
        draft, name, where = self.draft, entry.text("name"), self.where(entry)
        reference = entry.get("valueFrom", "secretKeyRef")
        if is_set_by_launcher(name):
            draft.rendered.append(f"{where}: {name}")
        elif reference:
            value = {name: {"secret": reference.text("name"), "key": reference.text("key")}}
            draft.add("secrets", value, where)
        elif entry.get("valueFrom"):
            self._patch_node("env", [_value(entry)], where)
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
                self._patch_node("resources", {key: _value(each)}, self.where(each))

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
                self._patch("volumes", [_value(volume)], where)
                if volume.get("hostPath"):
                    draft.say("kubernetes.security", "privileged", where, "for a folder of the node")
                for mount in used:
                    self._patch_node("volumeMounts", [_value(mount)], self.where(mount))

    def _node_mounts(self, pod: Node, main: Node | None) -> list[Node]:
        found = [each for each in pod.elements("containers") if main is None or each.raw is not main.raw]
        return [
            mount
            for each in found
            if each.text("name") in ("node", main.text("name") if main else "")
            for mount in each.elements("volumeMounts")
        ]

    def _program(self, container: Node | None) -> None:
        draft = self.draft
        if not draft.has("kubernetes.security") and not draft.has("kubernetes.runtime"):
            draft.say("kubernetes.security", "baseline", "not said", "as the source, which runs as the image's user")
        if draft.has("kubernetes.host_network") or draft.has("resources.rdma"):
            draft.said.pop(("kubernetes", "security"), None)
            draft.say("kubernetes.security", "privileged", "not said", "for hostNetwork or RDMA")
        said = draft.said.pop(("gpus_per_node",), None)
        gpus = getattr(said, "value", None)
        node_where = said.where if said else getattr(draft.said.get(("nodes",)), "where", "not said")
        if said:
            draft.rendered.append(f"{said.where}: GPUs, which are procs_per_node or gpus_per_node")
        nodes = getattr(draft.said.get(("nodes",)), "value", 1)
        script = started(container) if container else None
        spec = self.job.get("spec")
        for key, each in spec.items() if spec else ():
            self._of_job(key, each)
        for owner in filter(None, (self.job, self.runtime)):
            for path in (("spec", "replicatedJobs"), ("spec", "template", "spec", "replicatedJobs")):
                for one in owner.elements(*path):
                    inner = one.get("template", "spec")
                    for key, each in inner.items() if inner else ():
                        self._of_job(key, each)
        if script is None:
            draft.lose("command", "the image's own program", node_where, "a spec says what runs")
        else:
            program = Program(script)
            texts = (
                [self.where(each) for each in (container.get("command"), container.get("args")) if each]
                if container
                else []
            )
            program.place = ", ".join(texts)
            before = draft.said.get(("procs_per_node",))
            say_processes(draft, program, 1, gpus, nodes if isinstance(nodes, int) else 1, node_where)
            if before is not None:
                draft.said[("procs_per_node",)] = before
            say_command(draft, program)
            say_around(draft, program)
        procs = getattr(draft.said.get(("procs_per_node",)), "value", None)
        draft.said.pop(("gpus_per_node",), None)
        if gpus and procs and gpus != procs:
            draft.say("gpus_per_node", gpus, node_where)
        unknown = any(path[0] == "gpus_per_node" for path in draft.said)
        if not gpus and not unknown:
            draft.say("device", "cpu", "not said", "the pods ask for no GPUs")

    def _of_job(self, key: str, node: Node) -> None:
        draft, where = self.draft, self.where(node)
        if key in ("runPolicy", "failurePolicy"):
            self.take(node)
            for name, each in node.items():
                self._of_job(name, each)
        elif key in ("activeDeadlineSeconds", "ttlSecondsAfterFinished") and number(node.text()):
            self.take(node)
            draft.say(JOB[key], duration(int(node.text())), where)
        elif key in ("backoffLimit", "maxRestarts") and number(node.text()) is not None:
            self.take(node)
            if draft.has("max_restarts"):
                draft.rendered.append(f"{where}: {key} {node.text()}")
            else:
                draft.say("max_restarts", int(node.text()), where)
        elif key == "nprocPerNode" and number(node.text()):
            self.take(node)
            draft.say("procs_per_node", int(node.text()), where)
        elif key in ("parallelism", "trainer", "pytorchReplicaSpecs"):
            pass
        elif key == "runtimeRef":
            self.take(node)
            if self.runtime is None:
                draft.say("kubernetes.runtime", node.text("name"), where)
            else:
                draft.rendered.append(f"{where}: {key}, whose runtime is in the manifest")
        elif key in _RENDERED or (key == "network" and not node.get("subdomain")):
            self.take(node)
            draft.rendered.append(f"{where}: {key}")

    def _rest(self, node: Node, path: tuple[str, ...]) -> None:
        """Name every field that no key stands for."""
        if id(node.raw) in self.done:
            return
        if path and (path[-1] in (*_RENDERED, *JOB) or path[-1] == "name"):
            self.draft.rendered.append(f"{self.where(node)}: {path[-1]} {node.text()}")
            return
        inside = [*node.items(), *((str(n), each) for n, each in enumerate(node.elements()))]
        if len(path) > 40:
            raise RecursionError
        for key, each in inside:
            self._rest(each, (*path, key))
        if not inside:
            self.draft.lose("kubernetes", f"{'.'.join(path)}: {node.text()}", self.where(node), "no key for it")


def _has_gpus(container: Node) -> bool:
    found = [container.get("resources", part) for part in ("limits", "requests")]
    return any(name.endswith("/gpu") for part in found if part for name, _ in part.items())


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


def _value(node: Node) -> Any:
    """Return a value as Kubernetes reads it, with whole numbers as such."""

    def whole(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(key): whole(each) for key, each in value.items()}
        if isinstance(value, list):
            return [whole(each) for each in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return whole(node.plain())
