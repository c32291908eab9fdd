"""A manifest with one training job as a draft of a spec: PyTorchJob, TrainJob, JobSet or Job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from jobspec.problems import Place, Problem, SpecError
from lint.manifest import Node, documents
from lint.pods import containers, templates
from lint.sbatch import number
from migrate.draft import Draft
from migrate.pod import RENDERED, PodReader, value_of
from migrate.program import duration, say_around, say_command, say_processes
from migrate.shell import Program

TARGETS = {"PyTorchJob": "pytorchjob", "TrainJob": "trainjob", "JobSet": "jobset", "Job": "indexedjob"}
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
_OURS = re.compile(
    r"app\.kubernetes\.io/|trainer\.kubeflow\.org/|sidecar\.istio\.io/inject|karpenter\.sh/do-not-disrupt"
    r"|cluster-autoscaler\.kubernetes\.io/safe-to-evict"
)


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


class _Manifest(PodReader):
    """Reads one job."""

    def __init__(self, draft: Draft, job: Node, found: list[Node], several: bool) -> None:
        super().__init__(draft, several)
        self.job, self.found = job, found
        runtime = job.text("spec", "runtimeRef", "name")
        own = [each for each in found if each.text("kind").endswith("TrainingRuntime")]
        self.runtime = next((each for each in own if each.text("metadata", "name") == runtime), None)

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
        all_pods = [pod for owner in owners for pod in templates(owner)]
        trainer = job.get("spec", "trainer")
        pods = [template.get("spec") for template, _ in all_pods]
        container = self._container(pods)
        self._nodes(all_pods)
        for template, _ in all_pods:
            self._metadata(template)
        first = trainer if trainer and (trainer.get("command") or trainer.get("args")) else container
        for key in ("command", "args"):
            if first is not None and (words := first.get(key)):
                self.words[key] = value_of(words)
        for pod in [*pods, *self._patches()]:
            if pod is not None:
                self.pod(pod, container)
        for each in filter(None, (container, trainer)):
            self.container(each)
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

    def _nodes(self, all_pods: list[tuple[Node, int | None]]) -> None:
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
                elif key not in ("minReplicas", "maxReplicas", *RENDERED):
                    draft.lose("nodes", f"elasticPolicy.{key}", self.where(node), "no key for it")
            return
        owners = [spec, *(role for _, role in spec.items("pytorchReplicaSpecs"))] if spec else []
        said = [owner.text(key) for owner in owners for key in ("replicas", "parallelism", "completions")]
        sizes = [1 if size is None else size for _, size in all_pods]
        sizes = [] if any(size and number(size) is None for size in said) else sizes
        if spec and (
            given := spec.get("trainer", "numNodes")
            or (self.runtime and self.runtime.get("spec", "mlPolicy", "numNodes"))
        ):
            count = number(given.text())
            sizes = [] if count is None else [count]
            draft.rendered.append(f"{self.where(given)}: numNodes, which is nodes")
        where = ", ".join(dict.fromkeys(self.line(template) for template, _ in all_pods)) or self.line(self.job)
        jobs = spec.elements("replicatedJobs") if spec else []
        times = [number(each.text("replicas")) or 1 for each in jobs] or [1] * len(sizes)
        if not sizes:
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
        made = [each for owner in filter(None, (self.job, self.runtime)) for each in containers(owner)]
        script = next((each.script for each in made if container and each.node.raw is container.raw), None)
        if container and script and script.text and not container.get("command"):
            draft.lose(
                "command", f"args {value_of(container.get('args') or container)}", node_where, "of the image's program"
            )
            script = None
        script = script if script and script.text else None
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
            if front := program.in_front(0):
                draft.lose("command", front, program.place, "stands in front of the program")
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
        elif key in RENDERED or (key == "network" and not node.get("subdomain")):
            self.take(node)
            draft.rendered.append(f"{where}: {key}")

    def _rest(self, node: Node, path: tuple[str, ...]) -> None:
        """Name every field that no key stands for."""
        if id(node.raw) in self.done:
            return
        if path and (path[-1] in (*RENDERED, *JOB) or path[-1] == "name"):
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
