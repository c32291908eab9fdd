"""The section `kubernetes` of a job spec."""

from typing import Any, Literal

from jobspec.spec.fields import Device, DnsLabel, DnsName, Duration, GpuType, LabelKey, LabelValue, Lines, RuntimeName
from jobspec.spec.value import Section, optional


class Toleration(Section):
    """A taint that the pods tolerate."""

    key: LabelKey | None = optional("key of the taint; left out: all keys")
    operator: Literal["Equal", "Exists"] = optional("Equal compares the value, Exists does not", "Equal")
    value: LabelValue | None = optional("value of the taint, with operator Equal")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = optional("effect; left out: all")
    seconds: int | None = optional("how long NoExecute is tolerated", ge=0, lt=2**31)


class Kubernetes(Section):
    """Keys that only the Kubernetes targets have."""

    namespace: DnsLabel | None = optional("namespace; left out: the current namespace of kubectl")
    queue: DnsName | None = optional("Kueue LocalQueue")
    workload_priority_class: DnsLabel | None = optional("Kueue WorkloadPriorityClass: the job's place in the queue")
    priority_class: DnsName | None = optional("PriorityClass of the pods")
    runtime: RuntimeName | None = optional("TrainingRuntime, such as torch-distributed; default: in the manifest")
    volcano_queue: DnsName | None = optional("queue of Volcano, with scheduler: volcano")
    scheduler: DnsName | None = optional("schedulerName of the pods: a gang scheduler, such as volcano")
    service_account: DnsName | None = optional("ServiceAccount of the pods")
    image_pull_secrets: list[DnsName] = optional("Secrets with registry passwords", [])
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = optional("when the image is pulled")
    secret: DnsName | None = optional("Secret that holds the keys named in `secrets`; default: the job's name")
    security: Literal["restricted", "baseline", "privileged"] = optional("Pod Security Standard of pods", "restricted")
    run_as_user: int | None = optional("user ID; default: the image's, or what OpenShift chooses", ge=0, lt=2**31)
    read_only_root: bool | None = optional(
        "only mounts, HOME and /tmp can be written to; default: true if security is restricted"
    )
    fs_group: int | None = optional("group ID that owns the mounted volumes", ge=1, lt=2**31)
    gpu_types: dict[GpuType, dict[LabelKey, LabelValue]] = optional(
        "labels of the nodes with each type of GPU, such as {h100: {nvidia.com/gpu.product: NVIDIA-H100}}", {}
    )
    gpu_resource: Device = optional("resource name of GPUs, such as amd.com/gpu", "nvidia.com/gpu")
    gpu_claim: DnsName | None = optional("ResourceClaimTemplate, such as gpus, that gives each pod its GPUs (DRA)")
    rdma_resource: Device | None = optional("resource name of RDMA devices, such as rdma/hca_shared_devices_a")
    network_policy: bool = optional("a NetworkPolicy lets only pods of the job connect to its pods", True)
    node_selector: dict[LabelKey, LabelValue] = optional("labels that the nodes must have", {})
    tolerations: list[Toleration] = optional("taints that the pods tolerate", [])
    labels: dict[LabelKey, LabelValue] = optional("labels on the objects and pods", {})
    annotations: dict[LabelKey, Lines] = optional("annotations on the top object and the pods", {})
    pod: dict[str, Any] = optional(
        "further keys of the pods' spec, such as {runtimeClassName: nvidia}, merged as they are; node is our container",
        {},
    )
    ttl: Duration | None = optional("how long the finished job is kept, such as 1d")
