"""Rules for Kubernetes manifests of any kind: Pod, Job, JobSet, PyTorchJob, TrainJob and its runtimes, Service."""

from __future__ import annotations

from collections.abc import Iterator

from jobspec.problems import Place, masked
from jobspec.spec.secret_names import names_secret
from lint.lexer import TORCHRUN
from lint.manifest import Node, script_of
from lint.pods import containers, gpus, starts, templates, variables
from lint.rules import Fault, number, rule
from lint.torchrun import torchrun_flags

QUEUE = "kueue.x-k8s.io/queue-name"

# Default ports of PyTorchJob and of torch: all jobs that set no port share them.
_DEFAULT_PORTS = ("23456", "29500")


@rule("https://github.com/kubernetes-sigs/kueue/issues/2796")
def queue_label_is_inert(document: Node) -> Iterator[Fault]:
    if document.text("kind") == "Pod" or document.get("metadata", "labels", QUEUE):
        return
    for template in templates(document):
        label = template.get("metadata", "labels", QUEUE)
        if label:
            reason = f"Kueue ignores this label on the pods: it reads the labels of the {document.text('kind')} itself"
            yield Fault(label.key_place, reason, f"put it in metadata.labels of the {document.text('kind')}")


@rule("https://github.com/kubeflow/trainer/issues/1797")
def host_network_without_cluster_names(document: Node) -> Iterator[Fault]:
    for template in templates(document):
        own = template.get("spec", "hostNetwork")
        if own and own.text() == "true" and template.text("spec", "dnsPolicy") != "ClusterFirstWithHostNet":
            reason = "pods with hostNetwork ask the node's name server, which knows no Service and no pod"
            yield Fault(own.place, reason, "dnsPolicy: ClusterFirstWithHostNet")


@rule("https://github.com/kubeflow/trainer/issues/2282")
def host_network_with_a_common_port(document: Node) -> Iterator[Fault]:
    for template in templates(document):
        own = template.get("spec", "hostNetwork")
        if own is None or own.text() != "true":
            continue
        for container in template.elements("spec", "containers"):
            env = {entry.text("name"): entry.text("value") for entry in container.elements("env")}
            ports = {port.text("name"): port.text("containerPort") for port in container.elements("ports")}
            port = env.get("PET_MASTER_PORT") or env.get("MASTER_PORT") or ports.get("pytorchjob-port") or ""
            if port in _DEFAULT_PORTS or (not port and document.text("kind") == "PyTorchJob"):
                reason = "with hostNetwork, two jobs with the same port cannot share a node"
                yield Fault(own.place, reason, "give the job its own port, and its pods anti-affinity")


@rule("https://github.com/pytorch/pytorch/issues/108861")
def shared_memory_is_small(document: Node) -> Iterator[Fault]:
    for container in containers(document):
        mounted = any(mount.text("mountPath") == "/dev/shm" for mount in container.elements("volumeMounts"))
        if not mounted and (gpus(container) or starts(container, *TORCHRUN)):
            name = container.get("name") or container
            reason = "/dev/shm of a container has 64 MiB, too little for DataLoader workers and NCCL"
            yield Fault(name.place, reason, "mount an emptyDir with medium: Memory and a sizeLimit at /dev/shm")


@rule("https://github.com/pytorch/pytorch/issues/73682")
def names_come_too_late(document: Node) -> Iterator[Fault]:
    selector = document.get("spec", "selector")
    if document.text("kind") != "Service" or document.text("spec", "clusterIP") != "None" or selector is None:
        return
    of_a_job = any(key.rpartition("/")[2] in ("job-name", "jobset-name") for key, _ in selector.items())
    if of_a_job and document.text("spec", "publishNotReadyAddresses") != "true":
        reason = "a pod gets its DNS name only when it is ready, but the pods need each other's names before that"
        yield Fault(selector.key_place, reason, "publishNotReadyAddresses: true")


@rule("https://github.com/NVIDIA/DeepLearningExamples/issues/1188")
def each_pod_trains_alone(document: Node) -> Iterator[Fault]:
    for job in _jobs(document):
        pods = job.text("completions") or job.text("parallelism")
        for container in job.elements("template", "spec", "containers") if pods not in ("", "0", "1") else ():
            script = script_of(container.get("command"), container.get("args"))
            names = [entry.text("name") for entry in container.elements("env")]
            if script is None or "PET_NNODES" in names or container.get("envFrom"):
                continue
            if torchrun_flags(script, "nnodes") or any(script.flags("--standalone")):
                continue
            # The address of another pod shows that the pods belong together.
            for flag in [*torchrun_flags(script, "master-addr"), *torchrun_flags(script, "rdzv-endpoint")][:1]:
                reason = f"without --nnodes, torchrun treats each of the {pods} pods as a job of one node"
                yield Fault(flag.place, reason, f"--nnodes={pods}, and --node-rank from JOB_COMPLETION_INDEX")


def _jobs(document: Node) -> Iterator[Node]:
    """Yield the specs of the Jobs in an object: of a Job itself, or of each job of a JobSet."""
    inside = [job.get("template", "spec") for job in document.elements("spec", "replicatedJobs")]
    own = document.get("spec") if document.text("kind") == "Job" else None
    yield from (spec for spec in [own, *inside] if spec)


@rule("https://github.com/huggingface/accelerate/issues/1918")
def shell_keeps_the_signal(document: Node) -> Iterator[Fault]:
    for container in containers(document):
        script = script_of(container.get("command"), container.get("args"))
        if script is None or len(script.commands) == 1:
            continue
        for command in script.commands:
            if command.has(*TORCHRUN, "python", "python3") and command.words[0].value != "exec":
                reason = "the shell is process 1 and does not hand on SIGTERM: the job is killed without a checkpoint"
                yield Fault(script.place(command.words[0]), reason, f"exec {command.words[0].value} …")


@rule("https://github.com/kubeflow/trainer/pull/2307")
def variable_is_reserved(document: Node) -> Iterator[Fault]:
    if document.text("kind") != "TrainJob":
        return
    for entry in document.elements("spec", "trainer", "env"):
        name = entry.get("name")
        if name and name.text().startswith("PET_"):
            reason = f"{name.text()} is set by Kubeflow Trainer: a TrainJob that sets it is refused"
            yield Fault(name.place, reason, "leave it out; numNodes and numProcPerNode decide it")


@rule("https://github.com/kubernetes/test-infra/issues/29455")
def secret_in_manifest(document: Node) -> Iterator[Fault]:
    for entry in variables(document):
        value = entry.get("value")
        if value and names_secret(entry.text("name")) and value.text():
            reason = f"everybody who may read the object can read the value of {entry.text('name')}"
            yield Fault(masked(value.key_place), reason, "valueFrom: {secretKeyRef: {name: …, key: …}}")


@rule("https://github.com/kubernetes/kubernetes/issues/82296")
def variable_is_no_text(document: Node) -> Iterator[Fault]:
    for entry in variables(document):
        value = entry.get("value")
        if value and value.is_number_or_switch:
            reason = f"the value of {entry.text('name')} is a number or boolean in YAML, but must be text"
            yield Fault(value.place, reason, f'value: "{value.text()}"')


@rule("https://github.com/kubeflow/trainer/issues/1992")
def processes_are_not_gpus(document: Node) -> Iterator[Fault]:
    for place, *texts in _processes_and_gpus(document):
        processes, asked = map(number, texts)
        if processes is not None and asked is not None and processes != asked:
            idle = asked - processes
            reason = f"{processes} processes of a pod share its {asked} GPUs: the last ones find no device"
            if idle > 0:
                reason = (
                    f"a pod starts {processes} process{'es' * (processes != 1)}: {idle} of its {asked} GPUs stay idle"
                )
            yield Fault(place, reason, f"start as many processes as there are GPUs: {asked}")


def _processes_and_gpus(document: Node) -> Iterator[tuple[Place, str, str]]:
    """Yield the place of a pod's number of processes, that number, and the number of GPUs that the pod requests."""
    trainer = document.get("spec", "trainer")
    count = document.get("spec", "trainer", "numProcPerNode")
    if trainer and count:
        yield count.place, count.text(), gpus(trainer, "resourcesPerNode", "limits")
    count = document.get("spec", "nprocPerNode")
    for container in containers(document):
        asked = gpus(container)
        if count:
            yield count.place, count.text(), asked
        script = script_of(container.get("command"), container.get("args"))
        for flag in torchrun_flags(script, "nproc-per-node") if script else ():
            yield flag.place, flag.value, asked
        for entry in container.elements("env"):
            value = entry.get("value")
            if value and entry.text("name") == "PET_NPROC_PER_NODE":
                yield value.place, value.text(), asked
