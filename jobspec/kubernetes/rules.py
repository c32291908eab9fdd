"""Rules of the API server, the operators and the Pod Security Standards, checked before anything is submitted.

`POD` holds the rules of every pod; those below it are of single kinds, each with its reason.
Sources: pkg/apis/core/validation/validation.go of Kubernetes; the validating webhooks of the operators; Pod
Security Standards.
"""

from collections.abc import Iterator
from functools import partial

from jobspec.kubernetes import pod_patch
from jobspec.kubernetes.pod import DISK, HOME, INSTANCE_LABEL
from jobspec.problems import Finding, Path
from jobspec.spec import files, mounts
from jobspec.spec.job import Job
from jobspec.spec.rules import image_runs

# Labels that the operators, Kueue and this program set; with another value, they would not find the pod.
_RESERVED_LABELS = (
    *("batch.kubernetes.io/", "jobset.sigs.k8s.io/", "kueue.x-k8s.io/", "scheduling.x-k8s.io/"),
    *("trainer.kubeflow.org/", "training.kubeflow.org/", INSTANCE_LABEL, "controller-uid", "job-name"),
)

_SIZES_OF_KUEUE = ("kueue.x-k8s.io/job-min-parallelism", "kueue.x-k8s.io/elastic-job")

image_is_given = partial(image_runs, "a pod")


def standard_is_kept(job: Job) -> Iterator[Finding]:
    standard = job.kubernetes.security
    if standard == "privileged":
        return
    forbidden = f"which kubernetes.security {standard} forbids"
    hint = "kubernetes: {security: privileged}, where the namespace allows it"
    for number, mount in enumerate(job.mounts):
        if mount.volume is None and mount.source is not None:
            message = f"mounts[{number}].source is a folder of the node, {forbidden}"
            yield Finding(("mounts", number, "source"), message, f"add claim: NAME to this mount, or set {hint}")
    if job.resources.rdma:
        yield Finding(("resources", "rdma"), f"resources.rdma is true: it needs IPC_LOCK, {forbidden}", hint)
    if job.kubernetes.run_as_user == 0 and standard == "restricted":
        hint = "set another user ID; or kubernetes: {security: baseline}, where the namespace allows it"
        yield Finding(("kubernetes", "run_as_user"), f"kubernetes.run_as_user is 0 (root), {forbidden}", hint)


def pods_get_their_gpus(job: Job) -> Iterator[Finding]:
    if job.gpu is not None and job.gpu not in job.kubernetes.gpu_types:
        message = f"gpu is {job.gpu}, but kubernetes.gpu_types does not say which nodes have it"
        hint = f"kubernetes: {{gpu_types: {{{job.gpu}: {{nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}}}}}}"
        yield Finding(("gpu",), message, f"use your cluster's labels, as in {hint}")
    for label, value in job.kubernetes.gpu_types.get(job.gpu or "", {}).items():
        if (other := job.kubernetes.node_selector.get(label, value)) != value:
            message = f"kubernetes.node_selector: {label} is {other}, but nodes with gpu {job.gpu} have {value}"
            yield Finding(("kubernetes", "node_selector", label), message, "leave it out", on_key=True)
    named = "gpu_resource" in job.kubernetes.model_fields_set
    if job.kubernetes.gpu_claim is not None and (named or job.device == "cpu"):
        also = "kubernetes.gpu_resource is given, too" if named else "device is cpu"
        message = f"kubernetes.gpu_claim says how the pods get their GPUs, but {also}"
        yield Finding(("kubernetes", "gpu_claim"), message, "leave one of them out", on_key=True)


def devices_are_asked_for_once(job: Job) -> Iterator[Finding]:
    if job.resources.rdma and job.kubernetes.rdma_resource is None:
        message = "resources.rdma is true, but kubernetes.rdma_resource does not name the device"
        hint = "write the name that `kubectl describe node` shows, such as rdma/hca_shared_devices_a"
        yield Finding(("resources", "rdma"), message, hint)
    own = {job.kubernetes.gpu_resource: "gpus_per_node (or procs_per_node)"} if job.device == "cuda" else {}
    if job.resources.rdma and job.kubernetes.rdma_resource:
        own[job.kubernetes.rdma_resource] = "resources.rdma"
    for name, amount in job.resources.devices.items():
        path: Path = ("resources", "devices", name)
        pages = name.startswith("hugepages-")
        if name in own:
            yield Finding(path, f"resources.devices: {own[name]} already asks for {name}", "leave it out", on_key=True)
        elif (pages or name == DISK) and isinstance(amount, int):
            yield Finding(path, f"resources.devices.{name} must be a size", f"{name}: 20GiB")
        elif not (pages or name == DISK) and isinstance(amount, str):
            yield Finding(path, f"resources.devices.{name} must be a whole number of devices")
        elif pages and job.resources.cpus is None and job.resources.memory is None:
            message = f"resources.devices: {name} needs resources.cpus or resources.memory, too"
            yield Finding(path, message, "for example memory: 200GiB", on_key=True)


def queues_have_their_scheduler(job: Job) -> Iterator[Finding]:
    if job.kubernetes.workload_priority_class is not None and job.kubernetes.queue is None:
        message = "kubernetes.workload_priority_class is only for Kueue, but kubernetes.queue is not given"
        hint = "set kubernetes.queue, or use kubernetes.priority_class, which needs no Kueue"
        yield Finding(("kubernetes", "workload_priority_class"), message, hint, on_key=True)
    if job.kubernetes.volcano_queue is not None and job.kubernetes.scheduler != "volcano":
        message = "kubernetes.volcano_queue is given, but kubernetes.scheduler is not volcano"
        yield Finding(("kubernetes", "volcano_queue"), message, "kubernetes: {scheduler: volcano}", on_key=True)


def topology_needs_kueue(job: Job, *, of_a_jobset: bool = False) -> Iterator[Finding]:
    exclusive = of_a_jobset and job.segment == job.nodes.max and job.topology and job.topology.required
    if job.topology is not None and job.kubernetes.queue is None and not exclusive:
        message = "topology needs Kueue, but kubernetes.queue is not given"
        hint = "set kubernetes.queue; without it, only a JobSet takes topology.required, for all its nodes"
        yield Finding(("topology",), message, hint, on_key=True)


def shared_memory_is_part_of_the_memory(job: Job) -> Iterator[Finding]:
    shm, memory = job.resources.shm, job.resources.memory
    if shm is not None and memory is not None and shm >= memory:
        message = "resources.shm must be below resources.memory: files in /dev/shm count as memory of the pod"
        yield Finding(("resources", "shm"), message)


def mounts_are_possible(job: Job) -> Iterator[Finding]:
    for number, mount in enumerate(job.mounts):
        if mounts.normal(mount.path) == HOME:
            message = f"mounts[{number}].path is {HOME}, where the pod already has the HOME of its processes"
            hint = "choose another path, such as /data; to make it the HOME, also set env: {HOME: /data}"
            yield Finding(("mounts", number, "path"), message, hint)
        if mount.volume is None and ".." in (mount.source or "").split("/"):
            yield Finding(("mounts", number, "source"), f'mounts[{number}].source must not contain ".."')


def tolerations_make_sense(job: Job) -> Iterator[Finding]:
    for number, toleration in enumerate(job.kubernetes.tolerations):
        path: Path = ("kubernetes", "tolerations", number)
        name = f"kubernetes.tolerations[{number}]"
        if toleration.operator == "Exists" and toleration.value:
            yield Finding((*path, "value"), f"{name}.value: operator Exists takes no value", "leave value out")
        if toleration.operator == "Equal" and toleration.key is None:
            hint = "add key: NAME, the key of the taint"
            yield Finding(path, f"{name} has no key, so its operator must be Exists", hint, on_key=True)
        if toleration.seconds is not None and toleration.effect != "NoExecute":
            yield Finding((*path, "seconds"), f"{name}.seconds is only for effect NoExecute", "effect: NoExecute")


def labels_of_others_are_not_set(job: Job) -> Iterator[Finding]:
    for key in job.kubernetes.labels:
        if key.startswith(_RESERVED_LABELS):
            hint = "leave it out; kubernetes.queue sets the queue" if key.startswith("kueue") else "leave it out"
            message = f"kubernetes.labels: {key} is set by the cluster or by render-job"
            yield Finding(("kubernetes", "labels", key), message, hint, on_key=True)
    for key in job.kubernetes.annotations:
        if key in _SIZES_OF_KUEUE:
            message = f"kubernetes.annotations: with {key}, Kueue starts fewer pods than the job has nodes"
            yield Finding(("kubernetes", "annotations", key), message, "leave it out", on_key=True)
        if key.startswith("kueue.x-k8s.io/podset-") and key.endswith(("-topology", "-slice-size")):
            message = f"kubernetes.annotations: {key} is set from topology"
            hint = "write topology: {required: LABEL}, perhaps with a segment, or {preferred: LABEL}"
            yield Finding(("kubernetes", "annotations", key), message, hint, on_key=True)


POD = (
    image_is_given,
    standard_is_kept,
    pods_get_their_gpus,
    devices_are_asked_for_once,
    queues_have_their_scheduler,
    topology_needs_kueue,
    shared_memory_is_part_of_the_memory,
    mounts_are_possible,
    tolerations_make_sense,
    labels_of_others_are_not_set,
    files.files_are_here,
    mounts.mounts_over_shm,
    pod_patch.patch_keeps_the_plumbing,
)


def fixed_size(reason: str, job: Job) -> Iterator[Finding]:
    """Reject a range of nodes and c10d, because of `reason`."""
    hint = "use the target indexedjob or pytorchjob"
    if job.nodes.elastic:
        yield Finding(("nodes",), f"nodes is a range, which this target cannot run: {reason}", hint, on_key=True)
    elif job.rendezvous.backend == "c10d":
        message = "rendezvous.backend is c10d, which numbers nodes by address; this target numbers them by pod"
        yield Finding(("rendezvous", "backend"), message, f"leave it out, or {hint}")


def preemption_needs_restarts(reason: str, job: Job, of_one_node: bool = False) -> Iterator[Finding]:
    """Reject `preemption` without restarts; `reason` says why a preemption would end the job."""
    if job.preemption is not None and job.max_restarts == 0 and (of_one_node or job.nodes.max > 1):
        message = f"preemption is given, but max_restarts is 0, so a preemption can end the job: {reason}"
        hint = "max_restarts: 10, or as many preemptions as you expect"
        yield Finding(("preemption",), message, hint, on_key=True)
