"""`kubernetes.pod`: keys of a pod's spec that this program has no key for, merged into the rendered pod.

Mappings are merged key by key.  In a list, elements with the same name are merged, as in Kubernetes' strategic merge;
other elements are appended.  For every kind of job, the container `node` is the one that runs the processes.
Source: Kubernetes API reference, PodSpec v1.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from jobspec.environment import Variable
from jobspec.problems import Finding, Path
from jobspec.spec.job import Job
from jobspec.spec.variables import is_set_by_launcher
from train.config import nearest

NODE = "node"

# Keys of a pod's spec: first those that a patch may set, then those that a key of the job spec decides.
_FREE_NAMES = """
    affinity dnsConfig dnsPolicy ephemeralContainers hostAliases hostIPC hostPID hostUsers initContainers os overhead
    preemptionPolicy priority readinessGates resourceClaims runtimeClassName schedulingGates securityContext
    shareProcessNamespace tolerations topologySpreadConstraints volumes containers nodeSelector imagePullSecrets
    automountServiceAccountToken enableServiceLinks hostnameOverride resources schedulingGroup
"""
FREE = frozenset(_FREE_NAMES.split())
_DECIDED = {
    "activeDeadlineSeconds": "time_limit",
    "hostNetwork": "kubernetes.host_network",
    **dict.fromkeys(["hostname", "setHostnameAsFQDN", "subdomain"], "name"),
    "nodeName": "kubernetes.node_selector",
    "priorityClassName": "kubernetes.priority_class",
    "restartPolicy": "max_restarts",
    "schedulerName": "kubernetes.scheduler",
    **dict.fromkeys(["serviceAccount", "serviceAccountName"], "kubernetes.service_account"),
    "terminationGracePeriodSeconds": "preemption.grace",
}
_DECIDED_IN_NODE = {
    **dict.fromkeys(["args", "command"], "command or train"),
    "image": "image",
    "imagePullPolicy": "kubernetes.image_pull_policy",
    "ports": "rendezvous.port",
    "workingDir": "workdir",
}
_UNITS = {
    **{"": Decimal(1), "m": Decimal("0.001"), "k": Decimal(1000), "Ki": Decimal(1 << 10)},
    **{"M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12)},
    **{"Mi": Decimal(1 << 20), "Gi": Decimal(1 << 30), "Ti": Decimal(1 << 40)},
}
_OWN_VOLUMES = ("shm", "home", "files", "mount-")
_NAMED_BY = {"volumeMounts": "mountPath", "ports": "containerPort"}  # every other list of mappings: name


def merge(spec: Mapping[str, Any], patch: Mapping[str, Any], container: str) -> dict[str, Any]:
    """Return a pod's spec with a patch merged in; `container` names the one of the processes."""
    (ours,) = (one["securityContext"] for one in spec["containers"])
    named = [{**one, "name": container} if one["name"] == NODE else one for one in patch.get("containers", [])]
    merged: dict[str, Any] = _merge(dict(spec), {**patch, **({"containers": named} if named else {})}, "")
    default = ours if spec["securityContext"].get("runAsNonRoot") else None  # `restricted` looks at each container
    kinds = {"containers", "initContainers"} & merged.keys()
    return {**merged, **{kind: [_secured(one, default) for one in merged[kind]] for kind in kinds}}


def variables(patch: Mapping[str, Any]) -> Iterator[Variable]:
    """Yield each variable that a patch sets in the container of the processes; in words where a pod gives its value."""
    for entry in (entry for one in _list(patch, "containers") if one["name"] == NODE for entry in _list(one, "env")):
        source = entry.get("valueFrom")
        kind, of = next(iter(source.items())) if isinstance(source, Mapping) and source else ("", {})
        words = f"<{of.get('fieldPath') or of.get('resource') or kind} of the pod>" if isinstance(of, Mapping) else ""
        value = "<secret>" if kind == "secretKeyRef" else words if kind else entry.get("value") or ""
        yield Variable(entry["name"], value, "spec")


def _secured(container: Mapping[str, Any], default: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a container whose securityContext, if it has none by now, is the default, and does not contradict itself.

    The API server refuses a container that is privileged and may not escalate its privileges.
    """
    context = container.get("securityContext", default)
    if isinstance(context, Mapping):
        capabilities = context.get("capabilities")
        added = capabilities.get("add") if isinstance(capabilities, Mapping) else None
        if context.get("privileged") is True or "SYS_ADMIN" in (added or ()):
            context = {key: value for key, value in context.items() if value or key != "allowPrivilegeEscalation"}
    return {**container, **({} if context is None else {"securityContext": context})}


def _merge(old: Any, new: Any, key: str) -> Any:
    if isinstance(old, dict) and isinstance(new, Mapping):
        return {**old, **{name: _merge(old.get(name), value, name) for name, value in new.items()}}
    if not (isinstance(old, list) and isinstance(new, list)):
        return new
    if key == "nodeSelectorTerms":  # one of them must hold: each of the patch asks for what ours asks for, too
        return [_merge(one, other, "") for one in old for other in new]
    name = _NAMED_BY.get(key, "name")
    result = list(old)
    for element in new:
        named = element.get(name) if isinstance(element, Mapping) else None
        same = (at for at, one in enumerate(result) if isinstance(one, dict) and name in one and one[name] == named)
        if (at := next(same, None)) is None:
            result.append(element)
        else:
            # A variable has a value or takes one from elsewhere, never both.
            result[at] = element if key == "env" else _merge(result[at], element, "")
    return result


def patch_keeps_the_plumbing(job: Job) -> Iterator[Finding]:
    patch = job.kubernetes.pod
    at: Path = ("kubernetes", "pod")
    decided = _DECIDED | ({"nodeSelector": "kubernetes.node_selector"} if job.kubernetes.queue else {})
    for key in patch:
        if key in decided:
            yield Finding((*at, key), f"kubernetes.pod: {key} is set from {decided[key]}", "leave it out", on_key=True)
        elif key not in FREE:
            guess = nearest(key, FREE)
            hint = f'did you mean "{guess}"?' if guess else "give a key of a pod's spec, such as affinity"
            yield Finding((*at, key), f"kubernetes.pod: a pod's spec has no key {key}", hint, on_key=True)
    for kind in ("containers", "initContainers", "volumes", "tolerations"):
        if not isinstance(patch.get(kind, []), list):
            yield Finding((*at, kind), f"kubernetes.pod.{kind} must be a list", on_key=True)
            continue
        for number, element in enumerate(patch.get(kind, [])):
            here = (*at, kind, number)
            if not isinstance(element, dict) or (kind != "tolerations" and not isinstance(element.get("name"), str)):
                wanted = "a mapping" if kind == "tolerations" else "a mapping with a name"
                yield Finding(here, f"kubernetes.pod.{kind}[{number}] must be {wanted}")
            elif kind == "volumes" and element["name"].startswith(_OWN_VOLUMES):
                message = f"kubernetes.pod.volumes: the name {element['name']} is reserved for the job's own volumes"
                yield Finding((*here, "name"), message, "choose another name")
            elif kind == "containers" and element["name"] == "pytorch":
                message = f"the container that runs the processes is called {NODE}, not pytorch"
                yield Finding((*here, "name"), f"kubernetes.pod.containers: {message}", f"name: {NODE}")
            elif kind == "containers" and element["name"] == NODE:
                yield from _node_keeps(job, element, here)
            if kind in ("containers", "initContainers") and isinstance(element, dict):
                yield from _variables_are_valid(element, here)


def _variables_are_valid(container: Mapping[str, Any], at: Path) -> Iterator[Finding]:
    """Reject what Kubernetes would: variables that are no list, and numbers and switches as values."""
    for key in ("env", "volumeMounts"):
        if not isinstance(container.get(key, []), list):
            yield Finding((*at, key), f"kubernetes.pod: {key} must be a list", on_key=True)
    for number, variable in enumerate(_list(container, "env")):
        value = variable.get("value") if isinstance(variable, dict) else None
        if value is not None and not isinstance(value, str):
            message = "kubernetes.pod: the value of a variable must be text"
            yield Finding((*at, "env", number, "value"), message, "put it in quotes")


def _node_keeps(job: Job, container: Mapping[str, Any], at: Path) -> Iterator[Finding]:
    for key in container.keys() & _DECIDED_IN_NODE.keys():
        message = f'kubernetes.pod: {key} of container "{NODE}" is set from {_DECIDED_IN_NODE[key]}'
        yield Finding((*at, key), message, "leave it out", on_key=True)
    resources = container.get("resources", {})
    if not isinstance(resources, dict):
        hint = "for example {requests: {cpu: 2}}"
        yield Finding((*at, "resources"), "kubernetes.pod: resources must be a mapping", hint, on_key=True)
        resources = {}
    for key in resources:
        if key == "requests" and isinstance(resources[key], dict):
            yield from _requests_fit(job, resources[key], (*at, "resources", key))
        elif key != "claims":
            message = f'kubernetes.pod: {key} of container "{NODE}" are set from resources'
            hint = "for more devices, use the spec's key resources.devices"
            yield Finding((*at, "resources", key), message, hint, on_key=True)
    for number, variable in enumerate(_list(container, "env")):
        name = variable.get("name") if isinstance(variable, dict) else None
        if not isinstance(name, str):
            yield Finding((*at, "env", number), "kubernetes.pod: a variable needs a name")
        elif is_set_by_launcher(name) or name in job.env or name in job.secrets:
            message = f"kubernetes.pod: the job itself sets the variable {name}"
            yield Finding((*at, "env", number), message, "choose another name")
    for number, mount in enumerate(_list(container, "volumeMounts")):
        if isinstance(mount, dict) and str(mount.get("name", "")).startswith(_OWN_VOLUMES):
            message = f"kubernetes.pod: the name {mount['name']} is reserved for the job's own volumes"
            hint = "choose another name; or mount folders and claims with mounts, a key of the job spec"
            yield Finding((*at, "volumeMounts", number), message, hint)


def _requests_fit(job: Job, requests: Mapping[str, Any], at: Path) -> Iterator[Finding]:
    """Check that requests are not above the limits; a device's request always equals its limit."""
    limits = {"cpu": job.resources.cpus, "memory": job.resources.memory}
    for name, value in requests.items():
        amount = _amount(value)
        if name not in limits:
            message = f"kubernetes.pod: the request for {name} is set from resources and procs_per_node"
            yield Finding((*at, name), message, "leave it out; only cpu and memory can be requested here", on_key=True)
        elif amount is None:
            message = f"kubernetes.pod: the request for {name} is not a Kubernetes quantity"
            yield Finding((*at, name), message, "write a quantity such as cpu: 8 or memory: 32Gi")
        elif (limit := limits[name]) is not None and amount > limit:
            message = f"kubernetes.pod: the request for {name} is above the limit, which the spec's key resources sets"
            yield Finding((*at, name), message, "request less, or raise the limit in the spec's resources")


def _amount(value: Any) -> Decimal | None:
    """Return a Kubernetes quantity as a number; None if the value is no quantity."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(m|k|[MGT]|[KMGT]i)?", str(value), re.ASCII)
    if found is None or isinstance(value, bool) or Decimal(found[1]) == 0:
        return None
    return Decimal(found[1]) * _UNITS[found[2] or ""]


def _list(container: Mapping[str, Any], key: str) -> list[Any]:
    value = container.get(key)
    return value if isinstance(value, list) else []
