"""One pod for each node, whatever object starts it: values for templates/_pod.yaml.j2, variables and who sets them.

Sources: Kubernetes API reference, Pod v1; Pod Security Standards, profiles baseline and restricted.
"""

import hashlib
import os
import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path as File
from typing import Any

from jobspec import kubernetes
from jobspec.environment import (
    FREE_PORT,
    NODE_OF_RANK_0,
    THIS_NODE,
    SetBy,
    Variable,
    common_variables,
    torchrun_variables,
)
from jobspec.kubernetes import pod_patch
from jobspec.plan import IN_CONTAINERS, TOPOLOGY, Plan, Rank, container_shm
from jobspec.spec import files, mounts
from jobspec.spec.fields import SecretName, quantity
from jobspec.spec.job import Job
from jobspec.spec.keys import all_of, keys
from jobspec.spec.shell import before
from jobspec.torchrun import SHUTDOWN_TIMEOUT, c10d_conf, notes, pod_flags, run_id, shutdown_timeout_s

# Label on every pod, with the job's name; anti-affinity and people select pods by it.
INSTANCE_LABEL = "app.kubernetes.io/instance"
DISK = "ephemeral-storage"  # the node's own disk: the container's layer, its logs and its emptyDirs
HOME = files.WORKDIR  # a folder of the pod that any user can write to; the folders of an image mostly belong to root

# What every kind of object does with its pods.
USES = (
    IN_CONTAINERS
    | TOPOLOGY
    | keys("gpu time_limit resources.devices")
    | (all_of("kubernetes") - {"kubernetes.ttl", "kubernetes.runtime"})
)

NOT_USED = {
    "slurm.array": "this is one job, not several",
    "preemption.max_requeues": "a preempted pod is replaced every time",
}
# The pod's address under c10d, because not every cluster can look up the name of a pod.
OWN_ADDRESS = {"PET_LOCAL_ADDR": "status.podIP"}

_HOME_SIZE = "100Gi"  # of HOME, so that one job cannot fill the disk of its node

_POD_LABELS = {"istio.io/dataplane-mode": "none"}  # a mesh must not stand between the processes
_ANNOTATIONS = {
    "sidecar.istio.io/inject": "false",
    "linkerd.io/inject": "disabled",
    # Autoscalers empty nodes that are little used: one pod that moves would restart all.
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
_LEAST_GRACE = 120  # seconds; a checkpoint of a large model takes most of that


def template_values(plan: Plan, *, container: str, torchrun: Sequence[str], patch: bool = False) -> dict[str, Any]:
    """Return the values for the shared templates; a target may set others in their place.

    container: name of the container; operators look for a certain name.
    torchrun: the command up to the program, in exec form.
    patch: True for only what a TrainJob may change in the pods of a runtime of the cluster.
    """
    job = plan.job
    setup, workdir, restricted = job.setup, files.workdir(job), job.kubernetes.security == "restricted"
    read_only_root = restricted if job.kubernetes.read_only_root is None else job.kubernetes.read_only_root
    travelling = [
        {"key": file_key(number, name), "path": files.target(job, name), "text": File(name).read_bytes().decode()}
        for number, name in enumerate(files.listed(job))
    ]
    gpus = {job.kubernetes.gpu_resource: job.gpus} if job.gpus and job.kubernetes.gpu_claim is None else {}
    rdma = {job.kubernetes.rdma_resource: 1} if job.resources.rdma and job.kubernetes.rdma_resource else {}
    # Requests are equal to limits by default: pods of the class Guaranteed are the last to be evicted.
    memory = None if job.resources.memory is None else quantity(job.resources.memory)
    amounts = {"cpu": job.resources.cpus, "memory": memory, DISK: job.resources.devices.get(DISK)}
    devices = {**gpus, **rdma, **job.resources.devices}
    if patch and workdir is not None:  # a TrainJob has no key for it
        setup = [f"cd {shlex.quote(workdir)}", *setup]
    return {
        "versions": f"{kubernetes.OLDEST} to {kubernetes.NEWEST}",
        "notes": [*_notes(job), *notes(plan, own_port=False)],
        "labels": {INSTANCE_LABEL: job.name, **job.kubernetes.labels},
        "pod_labels": {INSTANCE_LABEL: job.name, **_POD_LABELS, **job.kubernetes.labels},
        "annotations": {**_ANNOTATIONS, **near(job), **job.kubernetes.annotations},
        "patch": patch,
        "secrets": [(name, holder_of(job, name), name.key) for name in job.secrets],
        "container": container,
        "torchrun": before(torchrun, setup),
        "workdir": None if patch else workdir,
        "files": travelling,
        "a_file_runs": any(os.access(name, os.X_OK) for name in files.listed(job)),
        # A pod that starts again mounts what the name holds then; so other files get another name.
        "config_map": f"{job.name}-files-{hashlib.sha256(repr(travelling).encode()).hexdigest()[:8]}",
        "waits": False,  # whether the command waits first in a container that was restarted
        "port_name": None,  # of the container, where an operator looks for it
        "env": pod_env(plan),
        "fields": {},  # variables that the kubelet takes from fields of the pod, and the path of each field
        "subdomain": None,  # name of the headless Service; None where an operator sets it
        "restart_policy": None,  # None where an operator sets it
        "deadline_s": None,  # seconds after which the kubelet ends the pod
        "grace_s": grace_s(job),
        # Of the containers, not of the pod: an operator's init container may have an image that runs as root.
        "not_root": restricted or None,
        "read_only_root": read_only_root or None,
        "tmp": read_only_root and not any(mounts.normal(mount.path) == "/tmp" for mount in job.mounts),
        "waits_for": None,  # name of the pod for which the others wait before they start
        "limits": {name: str(amount) for name, amount in {**amounts, **devices}.items() if amount is not None},
        "scratch": {number: quantity(mount.scratch) for number, mount in enumerate(job.mounts) if mount.scratch},
        "node_selector": {**job.kubernetes.gpu_types.get(job.gpu or "", {}), **job.kubernetes.node_selector},
        "home": HOME,
        "home_size": job.resources.devices.get(DISK) or _HOME_SIZE,
        "shm": quantity(container_shm(job)),
    }


def near(job: Job) -> dict[str, str]:
    """Return the annotations of pods by which Kueue places them near one another."""
    topology, prefix = job.topology, "kueue.x-k8s.io/podset-"
    if topology is None or job.kubernetes.queue is None:
        return {}
    if job.segment < job.nodes.max:
        return {f"{prefix}slice-required-topology": topology.required or "", f"{prefix}slice-size": str(job.segment)}
    kind = "required" if topology.required else "preferred"
    return {f"{prefix}{kind}-topology": getattr(topology, kind)}


def reason(job: Job) -> str:
    """Return the command that shows why a job waits: for its queue, or its pods for nodes."""
    what = f"pods -l app.kubernetes.io/instance={job.name}" if job.kubernetes.queue is None else "workloads"
    return f"kubectl describe {what}" + (f" -n {job.kubernetes.namespace}" if job.kubernetes.namespace else "")


def file_key(number: int, name: str) -> str:
    """Return the key of one of the job's files in its ConfigMap, which takes no slash and no blank."""
    return f"{number}-{re.sub('[^A-Za-z0-9._-]', '_', posixpath.basename(name))}"[-253:]


def pod_env(plan: Plan) -> dict[str, str]:
    """Return the plan's variables, HOME, and how long torchrun waits for its processes when the pod is preempted."""
    ours = {"HOME": HOME, SHUTDOWN_TIMEOUT: str(shutdown_timeout_s(grace_s(plan.job)))}
    return dict(sorted({**ours, **plan.env}.items()))


def grace_s(job: Job) -> int:
    """Return the seconds between the SIGTERM and the SIGKILL of a pod."""
    return max(_LEAST_GRACE, job.preemption.grace if job.preemption else 0)


def holder_of(job: Job, name: SecretName) -> str:
    return name.secret or job.kubernetes.secret or job.name


def _notes(job: Job) -> Iterator[str]:
    containers = job.kubernetes.pod.get("containers", [])
    if job.kubernetes.pod:
        standard = f"the Pod Security Standard {job.kubernetes.security}"
        yield f"kubernetes.pod is merged into the pods, and the result is not checked against {standard}."
    if beside := [one["name"] for one in containers if one["name"] != pod_patch.NODE]:
        yield f"The job ends only when its other containers have ended, too: {', '.join(beside)}.  One that serves the"
        yield "others belongs under initContainers, with restartPolicy: Always."
    if job.kubernetes.security == "restricted" and job.kubernetes.run_as_user is None:
        yield "The image's user must be a number, not 0 (USER 1000), or set by kubernetes.run_as_user or OpenShift."
    if job.kubernetes.pod.get("hostNetwork"):
        yield "No NetworkPolicy holds on the host's network: a firewall must keep others from the job's ports."
    for secret in sorted({holder_of(job, name) for name in job.secrets}):
        keys = [name.key for name in job.secrets if holder_of(job, name) == secret]
        yield f'Needed beforehand: Secret "{secret}" with the keys {", ".join(dict.fromkeys(keys))}.'
    patches = [one for one in containers if one["name"] == pod_patch.NODE]
    requested = {"cpu": job.resources.cpus, "memory": job.resources.memory}
    requested |= {key: 1 for one in patches for key in one.get("resources", {}).get("requests") or ()}
    absent = [f"resources.{key}" for key in ("cpus", "memory") if requested[key.removesuffix("s")] is None]
    if absent and job.kubernetes.runtime is None:
        yield f"Not given: {' and '.join(absent)}.  Such pods are among the first to be evicted,"
        yield "and a namespace or queue with a quota for them takes no pod that does not say how much it needs."
    if job.kubernetes.gpu_claim is not None:
        gpus = f"{job.gpus} GPU{'s' if job.gpus > 1 else ''}"
        yield f"Needed beforehand: ResourceClaimTemplate {job.kubernetes.gpu_claim}, which asks for {gpus}."
    if job.kubernetes.gpu_claim is not None and job.kubernetes.queue is not None:
        yield "Kueue admits the claim only if its configuration maps the DeviceClass (resources.deviceClassMappings)."
    if job.gpus and "/mig-" in job.kubernetes.gpu_resource and job.procs_per_node > 1:
        yield "CUDA shows a process one MIG slice only: the processes of a pod would share it, which NCCL refuses."
        yield "Write procs_per_node: 1, and more nodes."
    if job.max_restarts or job.preemption:
        yield "If a node dies, its pod is replaced only when the Node object is deleted, or marked in this way:"
        yield "kubectl taint nodes NODE node.kubernetes.io/out-of-service=x:NoExecute"
    for kind, key in (("PersistentVolumeClaim", "claim"), ("ConfigMap", "config_map"), ("Secret", "secret")):
        if names := sorted({getattr(mount, key) for mount in job.mounts} - {None}):
            yield f"Needed beforehand: {kind} {', '.join(names)}{'' if key == 'claim' else ', mounted as files'}."
    if any(mount.claim and not mount.read_only for mount in job.mounts) and job.nodes.max > 1:
        yield "Several nodes mount a claim and may write to it: its access mode must be ReadWriteMany."


def pod_variables(plan: Plan) -> list[Variable]:
    """List the variables that are the same in all pods of a job."""
    ours = {name: value for name, value in pod_env(plan).items() if name not in plan.env}
    listed = [*(Variable(name, value, "script") for name, value in ours.items()), *common_variables(plan)]
    return [*{one.name: one for one in (*listed, *pod_patch.variables(plan.job.kubernetes.pod))}.values()]


def node_variables(plan: Plan, rank: Rank, master_addr: str, master_port: int, set_by: SetBy) -> list[Variable]:
    """List torchrun's variables that differ between nodes and jobs; the script's node numbers are the scheduler's."""
    return [
        Variable("PET_NNODES", str(plan.job.nodes.max), set_by),
        Variable("PET_NODE_RANK", str(rank.node), "scheduler" if set_by == "script" else set_by),
        Variable("PET_MASTER_ADDR", master_addr, set_by),
        Variable("PET_MASTER_PORT", str(master_port), set_by),
    ]


def completion_index(plan: Plan, value: str) -> list[Variable]:
    """List the variable that the Job controller adds, unless the spec has one of this name."""
    name = "JOB_COMPLETION_INDEX"
    return [] if name in plan.env else [Variable(name, value, "scheduler")]


def indexed_environment(plan: Plan, rank: Rank, master_addr: str, operators_port: int = 0) -> list[Variable]:
    """List every variable of a process in a numbered pod; operators_port: that an operator gives torchrun, or 0."""
    numbers = node_variables(plan, rank, master_addr, plan.port, set_by="script")
    if operators_port:
        per_node = Variable("PET_NPROC_PER_NODE", str(plan.job.procs_per_node), "operator")
        numbers = [per_node, *node_variables(plan, rank, master_addr, operators_port, set_by="operator")]
    numbers += completion_index(plan, str(rank.node))
    # Pods are restarted, not their processes.
    theirs = torchrun_variables(plan, rank, master_addr, str(plan.port), run_id(plan), max_restarts=0)
    return [*pod_variables(plan), *numbers, *theirs]


def elastic_start(plan: Plan, number: str) -> list[str]:
    """Return the command of pods that meet by c10d; `number` names the variable with the number of the pod."""
    start = f'exec torchrun --rdzv-conf="{c10d_conf(plan, f"$(({number} == 0))")}" "$@"'
    return ["sh", "-c", start, "torchrun", *pod_flags(plan, static=False)]


def elastic_environment(plan: Plan, rank: Rank, node_0: str, number: str, set_by: SetBy) -> list[Variable]:
    """List the variables of a process in a pod that meets the others by c10d; see `elastic_start`."""
    return [
        Variable(number, "<number of the pod>", "operator" if set_by == "operator" else "scheduler"),
        Variable("PET_LOCAL_ADDR", THIS_NODE, "scheduler"),
        Variable("PET_RDZV_ENDPOINT", f"{node_0}:{plan.port}", set_by),
        Variable("PET_RDZV_BACKEND", "c10d", set_by),
        Variable("PET_NNODES", f"{plan.job.nodes.min}:{plan.job.nodes.max}", set_by),
        *torchrun_variables(plan, rank, NODE_OF_RANK_0, FREE_PORT, run_id(plan)),
    ]


def indexed_values(plan: Plan, master_addr: str, subdomain: str | None = None) -> dict[str, Any]:
    """Return the values for the templates of pods that the Job controller numbers; see `template_values`."""
    nodes, port = str(plan.job.nodes.max), str(plan.port)
    values = template_values(plan, container="node", torchrun=["torchrun", *pod_flags(plan)])
    return {
        **values,
        "env": {**values["env"], "PET_NNODES": nodes, "PET_MASTER_ADDR": master_addr, "PET_MASTER_PORT": port},
        "fields": {"PET_NODE_RANK": "metadata.annotations['batch.kubernetes.io/job-completion-index']"},
        "subdomain": subdomain,
        "restart_policy": "Never",
    }
