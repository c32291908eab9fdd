"""A compose file: each node is a service, all on one machine, in their own network."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from jobspec import torchrun
from jobspec.environment import Variable, common_variables, variables_of_meeting
from jobspec.plan import IN_CONTAINERS, RENDEZVOUS_TIMEOUT_S, Plan, Rank, container_shm
from jobspec.problems import Finding
from jobspec.spec import files, mounts
from jobspec.spec.fields import quantity
from jobspec.spec.job import Job
from jobspec.spec.keys import all_of
from jobspec.spec.rules import image_runs, leaves_room
from jobspec.spec.shell import before
from jobspec.targets import Target

USES = IN_CONTAINERS | all_of("compose")
NOT_USED = {
    "gpu": "the machine's GPUs are used",
    "topology": "all nodes are containers of one machine",
    "time_limit": "compose has no time limit",
    "resources.devices": "only Kubernetes knows these names",
    "preemption.max_requeues": "compose requeues nothing",
    "slurm.array": "this is one job, not several",
}

# Seconds that compose gives a stopped node; torchrun gives its processes 30, and compose by default only 10.
_STOP_GRACE = 40


def template_values(plan: Plan) -> dict[str, Any]:
    job, node_0 = plan.job, node_name(plan, 0)
    at_node_0 = [f"--rdzv-endpoint={node_0}:{plan.port}"]
    if plan.backend == "static":
        at_node_0 = [f"--master-addr={node_0}", f"--master-port={plan.port}"]
    flags = [*torchrun.job_flags(plan, _torchrun_restarts(plan)), *(at_node_0 if job.nodes.max > 1 else [])]
    return {
        "notes": [*_notes(job), *torchrun.notes(plan)],
        "entrypoint": before(["torchrun"], job.setup),
        "words": [*flags, *plan.torchrun_program],
        "environment": {variable.name: variable.value for variable in _own_variables(plan)} | dict(plan.env),
        "nodes": [_node(plan, node) for node in range(job.nodes.max)],
        "memory": job.resources.memory and _size(job.resources.memory),
        "shm": _size(container_shm(job)),
        "restarts": job.max_restarts - _torchrun_restarts(plan),
        "stop_grace": job.preemption.grace if job.preemption else _STOP_GRACE,
        "workdir": files.workdir(job),
        "project": job.compose.project or job.name,
        # compose leaves empty files out
        "files": [
            {"path": files.target(job, f), "text": Path(f).read_bytes().decode() or "\n", "runs": os.access(f, os.X_OK)}
            for f in files.listed(job)
        ],
        "claims": sorted({mount.claim for mount in job.mounts if mount.claim is not None and mount.source is None}),
    }


def _size(size: int) -> str:
    """Write bytes (whole MiB) as compose does: 4g is 4 GiB."""
    return quantity(size).removesuffix("i").lower()


def _notes(job: Job) -> Iterator[str]:
    if any(mount.empty for mount in job.mounts):
        yield "Not used here: the size of scratch; nothing limits it."


def environment(plan: Plan, rank: Rank) -> list[Variable]:
    common = [*_own_variables(plan), *common_variables(plan)]
    order = list(range(plan.job.nodes.max))
    if plan.backend == "c10d":
        order.sort(key=lambda number: node_name(plan, number))
    ours = [Variable(name, value, "script") for name, value in _node_environment(plan, order[rank.node]).items()]
    first, restarts = node_name(plan, order[0]), _torchrun_restarts(plan)
    return [*common, *ours, *variables_of_meeting(plan, rank, first, str(plan.port), torchrun.run_id(plan), restarts)]


def node_name(plan: Plan, node: int) -> str:
    """Return the name of the service, which is also its DNS name in the project's network."""
    return f"{plan.job.name}-{node}"


def each_node_has_its_gpus(job: Job) -> Iterator[Finding]:
    gpus, needed = job.compose.gpus, job.nodes.max * job.gpus
    if gpus and job.device == "cpu":
        yield Finding(("compose", "gpus"), "compose.gpus is given, but device is cpu", "leave one of them out")
    elif gpus and len(set(gpus)) < needed:
        message = f"compose.gpus names {len(set(gpus))} different GPUs, but the job needs {needed}"
        yield Finding(("compose", "gpus"), message, "no two nodes share a GPU")
    elif len(set(gpus)) < len(gpus):
        yield Finding(("compose", "gpus"), "compose.gpus names a GPU twice", "no two nodes share a GPU")


def mounts_leave_the_container_what_it_needs(job: Job) -> Iterator[Finding]:
    for number, mount in enumerate(job.mounts):
        if mount.source is None and mount.claim is not None and mount.sub_path is not None:
            message = f"mounts[{number}].sub_path: before Docker 26 the engine ignores it and mounts the whole volume"
            yield Finding(("mounts", number, "sub_path"), message, "write source: PATH, or leave sub_path out")
        if mount.source is None and mount.volume in ("config_map", "secret"):
            message = f"mounts[{number}].{mount.volume} exists only on Kubernetes; compose mounts folders and volumes"
            yield Finding(("mounts", number, mount.volume), message, "write source: PATH, a folder of this machine")
        path = mounts.normal(mount.path)
        if path in ("/", "/dev", "/proc", "/sys") or path.startswith(("/proc/", "/sys/")):
            message = f"mounts[{number}].path is {mount.path}, which belongs to the container itself"
            yield Finding(("mounts", number, "path"), message, "choose another path, such as /data")


RULES = (
    files.files_are_here,
    mounts.empty_mounts_have_no_folders,
    mounts.mounts_over_shm,
    partial(image_runs, "compose"),
    partial(leaves_room, "a host", lambda job: f"-{job.nodes.max - 1}"),
    each_node_has_its_gpus,
    mounts_leave_the_container_what_it_needs,
)


def _torchrun_restarts(plan: Plan) -> int:
    """Return how many of the job's restarts torchrun makes: all for an elastic job, which continues with fewer nodes.

    Any other job needs all its nodes: the engine restarts a killed container, and the others, which fail then, too.
    """
    return plan.job.max_restarts if plan.job.nodes.elastic else 0


def _node(plan: Plan, node: int) -> dict[str, Any]:
    """Return what is different in the service of one node; no other node has its GPUs, which it sees from number 0."""
    each = plan.job.gpus
    all_gpus = plan.job.compose.gpus or range(plan.job.nodes.max * each)
    gpus = [str(gpu) for gpu in all_gpus[node * each : (node + 1) * each]]
    return {"name": node_name(plan, node), "environment": _node_environment(plan, node), "gpus": gpus}


def _node_environment(plan: Plan, node: int) -> dict[str, str]:
    if plan.job.nodes.max == 1:
        return {}
    if plan.backend == "static":
        return {"PET_NODE_RANK": str(node)}
    return {"PET_RDZV_CONF": torchrun.c10d_conf(plan, str(int(node == 0))), "PET_LOCAL_ADDR": node_name(plan, node)}


def _own_variables(plan: Plan) -> list[Variable]:
    """List the variable for how long torchrun waits for its processes after SIGTERM, if the spec has `preemption`."""
    if plan.job.preemption is None or torchrun.SHUTDOWN_TIMEOUT in plan.env:
        return []
    seconds = torchrun.shutdown_timeout_s(plan.job.preemption.grace)
    return [Variable(torchrun.SHUTDOWN_TIMEOUT, str(seconds), "script")]


TARGET = Target(
    name="compose",
    uses=USES,
    not_used=NOT_USED,
    rules=RULES,
    template_values=template_values,
    environment=environment,
    rendezvous_timeout_s=RENDEZVOUS_TIMEOUT_S,
    node_name=node_name,
    hides_the_node=lambda job: True,
)
