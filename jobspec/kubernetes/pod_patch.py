"""`kubernetes.pod`: keys of a pod's spec that this program has no key for, merged into the rendered pod.

Mappings are merged key by key.  In a list, elements with the same name are merged, as in Kubernetes' strategic merge;
other elements are appended.  For every kind of job, the container `node` is the one that runs the processes.
Source: Kubernetes API reference, PodSpec v1.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jobspec.environment import Variable
from jobspec.problems import Finding, Path
from jobspec.spec.job import Job
from jobspec.spec.variables import is_set_by_launcher

NODE = "node"

# Keys of a pod's spec, and of the container of the processes, that a key of the job spec decides.
_DECIDED = {
    "activeDeadlineSeconds": "time_limit",
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
_OWN_VOLUMES = ("shm", "home", "files", "mount-")
_NAMED_BY = {"volumeMounts": "mountPath", "ports": "containerPort"}  # every other list of mappings: name


def merge(spec: Mapping[str, Any], patch: Mapping[str, Any], container: str) -> dict[str, Any]:
    """Return a pod's spec with a patch merged in; `container` names the one of the processes."""
    (ours,) = (one["securityContext"] for one in spec["containers"])
    named = [{**one, "name": container} if one["name"] == NODE else one for one in patch.get("containers", [])]
    merged: dict[str, Any] = _merge(dict(spec), {**patch, **({"containers": named} if named else {})}, "")
    # `restricted` looks at each container; whether another one can do without its root is not ours to say.
    mild = {key: value for key, value in ours.items() if key != "readOnlyRootFilesystem"}
    default = mild if ours.get("runAsNonRoot") else None
    kinds = {"containers", "initContainers"} & merged.keys()
    return {**merged, **{kind: [_secured(one, default) for one in merged[kind]] for kind in kinds}}


def variables(patch: Mapping[str, Any]) -> Iterator[Variable]:
    """Yield each variable that a patch sets in the container of the processes; in words where a pod gives its value."""
    for entry in (entry for one in patch.get("containers", []) if one["name"] == NODE for entry in _variables(one)):
        source = entry.get("valueFrom")
        kind, of = next(iter(source.items())) if isinstance(source, Mapping) and source else ("", {})
        words = f"<{of.get('fieldPath') or of.get('resource') or kind} of the pod>" if isinstance(of, Mapping) else ""
        value = "<secret>" if kind == "secretKeyRef" else words if kind else str(entry.get("value") or "")
        if not kind and re.search(r"(?<!\$)(\$\$)*\$\(", value):
            value = f"<{value} as the kubelet expands it>"
        yield Variable(str(entry.get("name")), value.replace("$$", "$"), "spec")


def _secured(container: Mapping[str, Any], default: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a container whose securityContext, if it has none by now, is the default, and does not contradict itself.

    The API server refuses a container that is privileged and may not escalate its privileges.
    """
    context = container.get("securityContext", default)
    if isinstance(context, Mapping):
        capabilities = context.get("capabilities")
        added = capabilities.get("add") if isinstance(capabilities, Mapping) else None
        if context.get("privileged") is True or (isinstance(added, list) and "SYS_ADMIN" in added):
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
            # A variable has a value or takes one from elsewhere, never both; a path shows one volume.
            result[at] = element if key in ("env", "volumeMounts") else _merge(result[at], element, "")
    return result


def patch_keeps_the_plumbing(job: Job) -> Iterator[Finding]:
    """Reject what would silently break the job.  What no pod can have, the API server refuses."""
    patch = job.kubernetes.pod
    at: Path = ("kubernetes", "pod")
    decided = _DECIDED | ({"nodeSelector": "kubernetes.node_selector"} if job.kubernetes.queue else {})
    for key in patch.keys() & decided.keys():
        yield Finding((*at, key), f"kubernetes.pod: {key} is set from {decided[key]}", "leave it out", on_key=True)
    for kind in ("containers", "initContainers", "volumes"):
        elements = patch.get(kind, [])
        if not isinstance(elements, list) or not all(map(_has_a_name, elements)):
            yield Finding((*at, kind), f"kubernetes.pod.{kind} must be a list of mappings with a name", on_key=True)
            continue
        for number, element in enumerate(elements):
            here: Path = (*at, kind, number)
            if kind == "volumes" and str(element["name"]).startswith(_OWN_VOLUMES):
                message = f"kubernetes.pod.volumes: the name {element['name']} is reserved for the job's own volumes"
                yield Finding((*here, "name"), message, "choose another name")
            elif kind == "containers" and element["name"] == "pytorch":
                message = f"the container that runs the processes is called {NODE}, not pytorch"
                yield Finding((*here, "name"), f"kubernetes.pod.containers: {message}", f"name: {NODE}")
            elif kind == "containers" and element["name"] == NODE:
                yield from _node_keeps(job, element, here)


def _has_a_name(element: Any) -> bool:
    return isinstance(element, dict) and isinstance(element.get("name"), str)


def _node_keeps(job: Job, container: Mapping[str, Any], at: Path) -> Iterator[Finding]:
    for key in container.keys() & _DECIDED_IN_NODE.keys():
        message = f'kubernetes.pod: {key} of container "{NODE}" is set from {_DECIDED_IN_NODE[key]}'
        yield Finding((*at, key), message, "leave it out", on_key=True)
    resources = container.get("resources", {})
    if not isinstance(resources, dict) or resources.keys() - {"requests", "claims"}:
        message = f'kubernetes.pod: resources of container "{NODE}" can have requests and claims, no other keys'
        yield Finding((*at, "resources"), message, "limits are set from the spec's key resources", on_key=True)
    elif not isinstance(resources.get("requests") or {}, dict):
        message = f'kubernetes.pod: requests of container "{NODE}" must be a mapping'
        yield Finding((*at, "resources", "requests"), message, "such as requests: {cpu: 8}", on_key=True)
    for number, name in enumerate(one.get("name") for one in _variables(container)):
        if isinstance(name, str) and (is_set_by_launcher(name) or name in job.env or name in job.secrets):
            message = f"kubernetes.pod: the job itself sets the variable {name}"
            yield Finding((*at, "env", number), message, "choose another name")


def _variables(container: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    env = container.get("env")
    return [one for one in env if isinstance(one, dict)] if isinstance(env, list) else []
