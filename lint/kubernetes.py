"""Rules for manifests (Pod, Job, JobSet, PyTorchJob, TrainJob and its runtimes, Service) and compose files."""

import re
from collections.abc import Iterator, Sequence

from lint.launches import launches, trained
from lint.manifest import Container, Manifest, Node, templates, variables
from lint.nodes import ANOTHER_MACHINE, LOOPBACK, MEETS
from lint.rules import Fault
from lint.sbatch import number
from lint.slurm import idle

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAMES = {63: re.compile(_LABEL), 253: re.compile(rf"{_LABEL}(\.{_LABEL})*")}
_PLACEHOLDER = re.compile(r"[^a-z]*|.*[^\w.-].*", re.A | re.S)  # YOUR_NAME, $NAME
_ADDRESSES = ("MASTER_ADDR", "PET_MASTER_ADDR")
_VERSIONS = {"Job": "batch/v1", "Pod": "v1", "Service": "v1", "PyTorchJob": "kubeflow.org/v1"}
_VERSIONS |= {"JobSet": "jobset.x-k8s.io/v1alpha2", "TrainJob": "trainer.kubeflow.org/v1alpha1"}
_GROUPS = {version.partition("/")[0] for version in _VERSIONS.values()}
_NAMED = {*_VERSIONS, "ConfigMap", "Secret", "PersistentVolumeClaim", "Deployment", "StatefulSet"}


def _is_job(document: Node) -> bool:
    """Return True for a Job of Kubernetes; one of another API, such as Volcano's, is none."""
    return document.text("kind") == "Job" and document.text("apiVersion").partition("/")[0] in ("batch", "")


def api_refuses_it(manifest: Manifest) -> Iterator[Fault]:
    for document in manifest.documents:
        kind, version, named = document.text("kind"), document.get("apiVersion"), document.get("metadata", "name")
        known, group = _VERSIONS.get(kind, ""), document.text("apiVersion").partition("/")[0]
        is_read = group in _GROUPS or "." not in group  # another API may have a kind of this name, and other names
        if known and version and version.text() != known and is_read:
            yield Fault(version.place, f"{kind} is not in {version.text()}", f"apiVersion: {known}")
        if kind in _NAMED and is_read:
            yield from _misnamed(named, 63 if kind == "Service" else 253)
        for template, _ in templates(document):
            yield from _misnamed(template.get("spec", "subdomain"), 63)
            policy = template.get("spec", "restartPolicy")
            said, place = policy.text() if policy else "", policy or template.get("spec")
            if place and _is_job(document) and said not in ("Never", "OnFailure"):
                reason = f"a Job has the restart policies Never and OnFailure, not {said or 'Always, the default'}"
                yield Fault(place.key_place, reason, "restartPolicy: Never")
        for _, role in document.items("spec", "pytorchReplicaSpecs"):
            count = role.get("replicas")
            if count and count.text() == "0":
                yield Fault(count.place, "the operator makes a pod even for 0 Workers", "leave the Workers out")
        if _is_job(document) or kind == "Pod":
            yield from _of_schema(document)
    for container in manifest.containers:
        for name, asked in container.node.items("resources", "requests"):
            if name.endswith("/gpu") and container.node.text("resources", "limits", name) != asked.text():
                fix = f"limits: {{{name}: {asked.text()}}}"
                yield Fault(asked.key_place, f"{name} is requested without an equal limit", fix)
        for name, _, node in variables(container.node) if container.script.unit == "pod" else ():
            if node.is_number_or_switch:
                reason = f"the value of {name} is a number or boolean in YAML, but must be text"
                yield Fault(node.place, reason, f'value: "{node.text()}"')


def _misnamed(name: Node | None, most: int) -> Iterator[Fault]:
    said = name.text() if name else ""
    if name and not (_NAMES[most].fullmatch(said) and len(said) <= most) and not _PLACEHOLDER.fullmatch(said):
        reason = f"a name is at most {most} lower-case letters, digits and -, which {said} is not"
        yield Fault(name.place, reason, re.sub("[^a-z0-9]+", "-", said.lower())[:most].strip("-"))


def _of_schema(document: Node) -> Iterator[Fault]:
    """Yield the first key that Kubernetes does not know; only where kubernetes-validate is installed."""
    try:
        import kubernetes_validate

        kubernetes_validate.validate(document.plain(), kubernetes_validate.latest_version(), strict=True)
    except Exception as error:  # not installed, or a finding, or values that are none of Kubernetes
        name = re.search(r"dditional properties.*?'(\w+)'", getattr(error, "message", ""))
        key = document.get(*getattr(error, "path", ()), name[1]) if name else None
        if key and name:
            yield Fault(key.key_place, f"Kubernetes knows no key {name[1]} here", "remove it, or see kubectl explain")


def gpus_stay_idle(manifest: Manifest) -> Iterator[Fault]:
    """Of the processes of an object; the options of a launcher are compared in slurm.py."""
    for container in manifest.containers:
        node, gpus = container.node, container.script.asked.gpus_per_node
        told = container.document.get("spec", "nprocPerNode") or node.get("numProcPerNode")
        first = next(iter(trained(container.script)), None)
        kind = first.kind if first and "nproc-per-node" not in first.options else ""
        processes, place = "", node.place
        if told and (kind == "torchrun" or node.get("numProcPerNode")):
            processes, place = told.text(), told.place
        elif container.document.text("kind") == "PyTorchJob" and kind in ("python", "torchrun"):
            processes, place = "1", (node.get("command") or node.get("args") or node).key_place
        count = number(processes)
        if count and gpus and count != gpus:
            yield Fault(place, idle(count, gpus, "pod"), f"torchrun --nproc-per-node={gpus}")


def nnodes_are_not_the_nodes(manifest: Manifest) -> Iterator[Fault]:
    for container in (each for each in manifest.containers if each.document.get("spec", "elasticPolicy")):
        for launch in (each for each in launches(container.script) if number(each.value("nnodes"))):
            reason = "--nnodes wins over what the operator says in PET_NNODES: elasticPolicy is ignored"
            yield Fault(container.script.place(launch.options["nnodes"].text), reason, "leave --nnodes out")


def nodes_never_meet(manifest: Manifest) -> Iterator[Fault]:
    """Compare bare Pods, each with its own rank; the pods of one object are compared in nodes.py."""
    found = []
    for container in (each for each in manifest.containers if each.document.text("kind") == "Pod"):
        told = {name: node for name, _, node in variables(container.node) if name not in container.script.assigned}
        rank, size, address = (told[key].text() if key in told else "" for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))
        reads_them = {launch.kind for launch in trained(container.script)} == {"python"}
        is_alone = LOOPBACK.fullmatch(address) and not container.template.get("spec", "hostNetwork")
        if reads_them and is_alone and rank and (number(size) or 1) > 1:
            found.append((id(container.document), rank, told["MASTER_ADDR"].place))
    pods, ranks = {pod for pod, _, _ in found}, {rank for _, rank, _ in found}
    for _, _, place in found if len(found) == len(pods) == len(ranks) > 1 else ():
        yield Fault(place, ANOTHER_MACHINE)


def name_does_not_resolve(manifest: Manifest) -> Iterator[Fault]:
    services = [each for each in manifest.documents if each.text("kind") == "Service"]
    for container in (each for each in manifest.containers if _is_job(each.document)):
        given = [(value, place) for name, value, _, place in container.script.settings if name in _ADDRESSES]
        options = [each.options for each in launches(container.script)]
        for value, place in [*given, *(each[name] for each in options for name in MEETS if name in each)]:
            if why := _why_not_resolved(container, value.partition(":")[0], services):
                yield Fault(container.script.place(place), f"{value} does not resolve: {why}")


def _why_not_resolved(container: Container, host: str, services: Sequence[Node]) -> str:
    """Return why the name of a Job's first pod does not resolve; empty for any other name."""
    job, namespace = (container.document.text("metadata", key) for key in ("name", "namespace"))
    subdomain, (pod, _, domain) = container.template.text("spec", "subdomain"), host.partition(".")
    names = {each.text("metadata", "name") for each in services}
    if pod != f"{job}-0" or pod in names or not re.fullmatch(r"[\w.-]+", host):
        return ""
    if not subdomain or domain.partition(".")[0] != subdomain:
        return f"the pods' subdomain is {subdomain}" if subdomain else "the pods have no subdomain"
    found = [each for each in services if each.text("metadata", "name") == subdomain]  # none: in another file
    theirs = {each.text("metadata", "namespace") for each in found}
    if found and namespace and not theirs & {namespace, ""}:
        return f"the Service {subdomain} is in the namespace {min(theirs)}, the pods in {namespace}"
    if found and all(each.text("spec", "clusterIP") != "None" for each in found):
        return f"the Service {subdomain} has a clusterIP, so it gives no names to pods"
    return ""


def failure_is_not_handled(manifest: Manifest) -> Iterator[Fault]:
    for document in (each for each in manifest.documents if each.text("kind") == "PyTorchJob"):
        policies = {role.text("restartPolicy") for _, role in document.items("spec", "pytorchReplicaSpecs")}
        place = document.get("spec", "runPolicy") or document.get("spec")
        if place and {"", "OnFailure", "Always"} & policies and not place.get("backoffLimit"):  # "" is OnFailure
            yield Fault(place.key_place, "a failing job is restarted forever")
