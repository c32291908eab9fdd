"""The job spec as pydantic models: every key, its type, its default and one line on what it does.

Defaults and descriptions live here only; the JSON Schema (`render-job schema`) comes from these models.
Rules between keys are in rules.py, and the rules of each target in its file under targets/.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from jobspec.spec import fields
from jobspec.spec.fields import Amount, Duration, SecretRef, Size
from jobspec.spec.kubernetes import Kubernetes
from jobspec.spec.slurm import Slurm
from jobspec.spec.value import Section, optional
from train.config import TrainConfig

# Far above any machine, but a typo does not become a million lines of commands.
MAX_NODES = 16384
MAX_PROCS_PER_NODE = 256

VOLUMES = ("claim", "scratch", "config_map", "secret")  # keys of a mount that name something of a cluster

_Count = Annotated[int, Field(ge=1, le=MAX_NODES)]


def _given(key: str) -> JsonDict:
    """Return the JSON Schema of a mapping in which a key is given and not empty."""
    return {"required": [key], "properties": {key: {"not": {"type": "null"}}}}


def _or_a_number(schema: JsonDict) -> None:
    mapping = {key: schema.pop(key) for key in [*schema] if key != "description"}
    schema["anyOf"] = [{"type": "integer", "minimum": 1, "maximum": MAX_NODES}, mapping]


class Nodes(Section):
    """How many nodes: one number, or a range for an elastic job, which continues when nodes come and go."""

    model_config = ConfigDict(json_schema_extra=_or_a_number)

    min: _Count = Field(description="the job runs while at least this many nodes are there")
    max: _Count = Field(description="the job uses at most this many nodes")

    @property
    def elastic(self) -> bool:
        return self.min != self.max

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        if type(value) is int and 1 <= value <= MAX_NODES:
            return {"min": value, "max": value}
        if isinstance(value, Mapping):
            return value
        expected = f"a whole number from 1 to {MAX_NODES}, or {{min: 1, max: 4}} for an elastic job"
        raise PydanticCustomError("unexpected", "must be {expected}", {"expected": expected})


class Mount(Section):
    """A folder, claim or other volume, seen inside the container under `path`.

    `source` can be given together with one of the others.  Slurm and compose then mount `source`, Kubernetes the other.
    """

    model_config = ConfigDict(json_schema_extra={"anyOf": [_given(key) for key in ("source", *VOLUMES)]})

    source: fields.FolderPath | None = optional("folder on every node; on Kubernetes, the others go before it")
    claim: fields.DnsName | None = optional("PersistentVolumeClaim (Kubernetes) or volume (compose)")
    scratch: Size | None = optional("empty space on the node's own disk, lost when the pod or container ends")
    config_map: fields.DnsName | None = optional("ConfigMap whose keys become files (Kubernetes)")
    secret: fields.DnsName | None = optional("Secret whose keys become files (Kubernetes)")
    sub_path: fields.SubPath | None = optional("only this folder or file of the source or volume, such as team/data")
    path: fields.FolderPath = Field(description="where the processes see the mount")
    read_only: bool = optional("no process can write to it", False)

    @property
    def volume(self) -> str | None:
        """The key that says what a target with volumes mounts; None if it mounts the folder of the node."""
        return next((key for key in VOLUMES if getattr(self, key) is not None), None)

    @property
    def empty(self) -> bool:
        """True if a target with folders makes an empty one for this mount."""
        return self.source is None and self.scratch is not None

    @property
    def folder(self) -> str | None:
        """The folder of the node, with `sub_path`."""
        if self.source is None or self.sub_path is None:
            return self.source
        return f"{self.source.rstrip('/')}/{self.sub_path}"


class Resources(Section):
    """What each node gives to the job; with device cuda, its GPUs are added."""

    cpus: int | None = optional("CPU cores of a node; each process gets its share as OMP_NUM_THREADS", ge=1, le=65536)
    memory: Size | None = optional("memory of a node, such as 200GiB")
    shm: Size | None = optional("size of /dev/shm, for DataLoader workers and NCCL; some containers have only 64 MiB")
    rdma: bool = optional("RDMA devices and the right to lock memory; sets NCCL_NET to IB, unless env does", False)
    devices: dict[fields.Resource, Amount] = optional(
        "further resources of a node as Kubernetes names them, such as {vpc.amazonaws.com/efa: 32}", {}
    )


class Rendezvous(Section):
    """How the nodes find each other."""

    backend: Literal["static", "c10d"] | None = optional("static: fixed ranks; c10d: nodes come and go, as in a range")
    host: fields.HostOfNode | None = optional("names by which the nodes meet, such as '{node}-ib'; default: their own")
    port: fields.Port = optional("port on node 0; auto: from the job's name, or on Slurm from its ID", "auto")
    timeout: Duration | None = optional("how long the nodes wait for the last one; default: 15m, or 1h on Kubernetes")

    def name_of(self, node: str) -> str:
        """Return the name by which the other nodes reach a node."""
        return (self.host or "{node}").replace("{node}", node)


class Preemption(Section):
    """The scheduler may take the nodes back: signal, checkpoint, requeue, resume."""

    grace: Duration = optional("time from the signal to the kill; must suffice to save a checkpoint", 120)
    max_requeues: int = optional("maximum number of requeues after signals (Slurm)", 20, ge=0, le=10000)


class Topology(Section):
    """Which nodes are near one another: all, or each segment of consecutive nodes; one of required and preferred."""

    required: fields.LabelKey | None = optional("block on Slurm, or a node label: near is below one value of it")
    preferred: fields.LabelKey | None = optional(
        "switch on Slurm, or a node label such as cloud.example/rack: below few of its values"
    )
    segment: _Count | None = optional("nodes that are near one another, such as 4 of 16; default: all")


class Compose(Section):
    """Keys that only compose has."""

    project: fields.DnsLabel | None = optional("name of the project; default: the job's name")
    gpus: list[Annotated[int, Field(ge=0)]] = optional("numbers of the GPUs, those of node 0 first, such as [2, 3]", [])
    run_as_user: int | None = optional("user and group ID of the processes; default: the image's user", ge=0, lt=2**31)


class Job(Section):
    """One training job: what runs, on how much hardware, and the keys of single targets."""

    model_config = ConfigDict(title="job spec", json_schema_extra={"oneOf": [_given("train"), _given("command")]})

    name: fields.JobName = Field(description="name of the job")
    nodes: Nodes = Field(description="number of nodes, or {min: 1, max: 4} for an elastic job")
    spares: int = optional("nodes beyond `nodes`, such as 1: all are measured, and bad ones left out", 0, ge=0, le=1024)
    procs_per_node: int = Field(
        ge=1,
        le=MAX_PROCS_PER_NODE,
        description="processes on each node: one per GPU, or any number that shares the CPUs",
    )
    device: Literal["cuda", "cpu"] = optional("what the processes compute on", "cuda")
    gpus_per_node: int | None = optional("GPUs of each node; default: procs_per_node", ge=1, le=MAX_PROCS_PER_NODE)
    gpu: fields.GpuType | None = optional("type of GPU, such as h100; on Kubernetes a key of kubernetes.gpu_types")
    image: fields.Image | None = optional("container image; not needed by targets that run no container")
    setup: list[fields.ShellLine] = optional(
        "lines of bash to run before the processes, such as [module load cuda]", []
    )
    workdir: fields.FolderPath | None = optional("folder in which setup and the processes start; default: the image's")
    train: TrainConfig | None = optional("settings of python -m train; a spec has either train or command")
    command: list[fields.Lines] | None = optional("your script and its arguments, as after torchrun", min_length=1)
    no_python: bool = optional("torchrun starts command itself: a shell script or another program", False)
    files: list[fields.FilePattern] = optional("your files, such as [train.py, lib/*.py], for pods and for compose", [])
    env: dict[fields.EnvName, fields.Lines] = optional("environment of the processes; values are text", {})
    secrets: list[SecretRef] = optional("names of secret variables, or {HF_TOKEN: {secret: hf, key: token}}", [])
    mounts: list[Mount] = optional("folders and claims inside the container", [])
    resources: Resources = optional("what each node gives to the job", Resources())
    time_limit: Duration | None = optional("the job is ended after this time, such as 2h")
    rendezvous: Rendezvous = optional("how the nodes find each other", Rendezvous())
    topology: Topology | None = optional("which nodes are near one another, such as {required: block, segment: 4}")
    max_restarts: int = optional("restarts after failures; default: 0, or 3 if nodes is a range", 0, ge=0, le=10000)
    preemption: Preemption | None = optional("the scheduler may preempt the job")
    watch: Duration | None = optional(
        "if no rank of command makes progress for so long, name the one that hangs, and end"
    )
    sweep: dict[fields.SweepKey, Annotated[list[fields.SweptValue], Field(min_length=1)]] = optional(
        "lists of values, such as {train.lr: [0.1, 0.01], train.seed: [0, 1]}. Each combination is one run. "
        "args.lr adds --lr=VALUE to command, env.LR sets a variable",
        {},
    )
    slurm: Slurm = optional("keys that only Slurm has", Slurm())
    kubernetes: Kubernetes = optional("keys that only the Kubernetes targets have", Kubernetes())
    compose: Compose = optional("keys that only compose has", Compose())

    @property
    def gpus(self) -> int:
        """GPUs of each node."""
        return 0 if self.device == "cpu" else self.gpus_per_node or self.procs_per_node

    @property
    def world_size(self) -> int:
        """The number of processes; for an elastic job, the largest number."""
        return self.nodes.max * self.procs_per_node

    @property
    def segment(self) -> int:
        """Number of consecutive nodes that are near one another; all nodes unless the spec has more segments."""
        return self.topology.segment or self.nodes.max if self.topology else self.nodes.max

    @model_validator(mode="after")
    def _survive_a_lost_node(self) -> Job:
        """Set the default of `max_restarts` for a range of nodes: with 0, the first lost node would end the job."""
        if self.nodes.elastic and "max_restarts" not in self.model_fields_set:
            self.__dict__["max_restarts"] = 3
        return self
