"""The section `kubernetes` of a job spec."""

from typing import Any, Literal

from pydantic import Field

from jobspec.spec.fields import DnsLabel, DnsName, Duration, GpuType, LabelKey, LabelValue, Lines
from jobspec.spec.value import Section


class Toleration(Section):
    """A taint that the pods tolerate."""

    key: LabelKey | None = Field(None, description="key of the taint; left out: all keys")
    operator: Literal["Equal", "Exists"] = Field("Equal", description="Equal compares the value, Exists does not")
    value: LabelValue | None = Field(None, description="value of the taint, with operator Equal")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="effect of the taint; left out: all effects"
    )
    seconds: int | None = Field(None, ge=0, lt=2**31, description="how long NoExecute is tolerated")


class Topology(Section):
    """How near to one another Kueue places the pods of a job: one of the two."""

    required: LabelKey | None = Field(None, description="node label: all pods below one value of it")
    preferred: LabelKey | None = Field(None, description="node label: all pods below as few values of it as possible")


class Kubernetes(Section):
    """Keys that only the Kubernetes targets have."""

    namespace: DnsLabel | None = Field(None, description="namespace; left out: the current namespace of kubectl")
    queue: DnsName | None = Field(None, description="Kueue LocalQueue")
    topology: Topology | None = Field(
        None,
        description="Kueue places the pods below one label of its Topology: {required: LABEL} or {preferred: LABEL}",
    )
    workload_priority_class: DnsLabel | None = Field(
        None, description="Kueue WorkloadPriorityClass: the job's place in the queue"
    )
    priority_class: DnsName | None = Field(None, description="PriorityClass of the pods")
    runtime: DnsName | None = Field(
        None, description="ClusterTrainingRuntime that the TrainJob uses; left out: the manifest brings its own runtime"
    )
    volcano_queue: DnsName | None = Field(None, description="queue of Volcano, with scheduler: volcano")
    scheduler: DnsName | None = Field(None, description="schedulerName of the pods, such as a gang scheduler")
    service_account: DnsName | None = Field(None, description="ServiceAccount of the pods")
    image_pull_secrets: list[DnsName] = Field([], description="Secrets with registry passwords")
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        None, description="when the image is pulled; left out: Kubernetes decides"
    )
    secret: DnsName | None = Field(
        None, description="Secret that holds the keys named in `secrets`; default: the job's name"
    )
    security: Literal["restricted", "baseline", "privileged"] = Field(
        "restricted", description="Pod Security Standard that the pods meet"
    )
    run_as_user: int | None = Field(
        None,
        ge=0,
        lt=2**31,
        description="user ID of the processes; left out: 1000 with security: restricted, otherwise the image's "
        "user; restricted forbids 0 (root)",
    )
    fs_group: int | None = Field(None, ge=1, lt=2**31, description="group ID that owns the mounted volumes")
    gpu_types: dict[GpuType, dict[LabelKey, LabelValue]] = Field(
        {},
        description="labels of the nodes with each type of GPU, such as {h100: {nvidia.com/gpu.product: NVIDIA-H100}}",
    )
    gpu_resource: LabelKey = Field("nvidia.com/gpu", description="resource name of GPUs")
    gpu_claim: DnsName | None = Field(
        None,
        description="ResourceClaimTemplate, such as gpus, that gives each pod its GPUs (DRA), not gpu_resource",
    )
    rdma_resource: LabelKey | None = Field(None, description="resource name of RDMA devices")
    host_network: bool = Field(False, description="pods use the network of their node")
    node_selector: dict[LabelKey, LabelValue] = Field({}, description="labels that the nodes must have")
    tolerations: list[Toleration] = Field([], description="taints that the pods tolerate")
    labels: dict[LabelKey, LabelValue] = Field({}, description="labels on the objects and pods")
    annotations: dict[LabelKey, Lines] = Field({}, description="annotations on the top object and the pods")
    pod: dict[str, Any] = Field(
        {},
        description="further keys of the pods' spec, merged as they are: affinity, initContainers and others, "
        "such as {runtimeClassName: nvidia}; {containers: [{name: node, …}]} is the container of the processes",
    )
    ttl: Duration | None = Field(None, description="how long the finished job is kept, such as 1d")
