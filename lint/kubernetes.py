"""Rules for the documents of a manifest: Pod, Job, JobSet, PyTorchJob, TrainJob and its runtimes, Service."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from jobspec.problems import Place, masked
from lint.launches import Launch, launches
from lint.manifest import Node
from lint.pods import containers, gpus, groups, roles, started, variables
from lint.rules import Fault, rule
from lint.sbatch import number
from lint.secrets import is_secret
from lint.tasks import idle

Documents = Sequence[Node]
_QUEUE = "kueue.x-k8s.io/queue-name"
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_POLICIES = {"Job": ("Never", "OnFailure"), "PyTorchJob": ("Never", "OnFailure", "Always", "ExitCode", "")}
_VERSIONS = {
    "Job": "batch/v1",
    "Pod": "v1",
    "Service": "v1",
    "PyTorchJob": "kubeflow.org/v1",
    "TrainJob": "trainer.kubeflow.org/v1alpha1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
}
# What the training operator sets in every container; pkg/controller.v1/pytorch/envvar.go.
_NAMES_BY_OPERATOR = """
    MASTER_ADDR MASTER_PORT RANK WORLD_SIZE PET_MASTER_ADDR PET_MASTER_PORT PET_NNODES PET_NODE_RANK PET_NPROC_PER_NODE
"""
_BY_OPERATOR = frozenset(_NAMES_BY_OPERATOR.split())
_ADDRESS = re.compile(r"([a-z0-9][-a-z0-9]*)(?:\.([a-z0-9][-a-z0-9]*))?(?:\.([a-z0-9][-a-z0-9]*)\.svc[\w.]*)?$")


def _is(document: Node, *kinds: str) -> bool:
    """Return True for one of some kinds; a Job of another API, such as Volcano's, is none."""
    kind = document.text("kind")
    return kind in kinds and not (kind == "Job" and document.text("apiVersion").partition("/")[0] not in ("batch", ""))


def _launches(container: Node) -> list[Launch]:
    script = started(container)
    return launches(script) if script else []


@rule
def api_refuses_it(documents: Documents) -> Iterator[Fault]:
    for document in documents:
        kind, version = document.text("kind"), document.get("apiVersion")
        known = _VERSIONS.get(kind, "")
        if known and version and version.text() != known and "volcano" not in version.text():
            yield Fault(version.place, f"{kind} is not in {version.text()}", f"apiVersion: {known}")
        for group in groups(document):
            named, label = group.template.text("spec", "restartPolicy"), group.template.get("spec", "subdomain")
            policy = group.template.get("spec", "restartPolicy") or group.template.get("spec")
            if policy and _is(document, "Job") and named not in _POLICIES["Job"]:
                reason = f"a Job has the restart policies Never and OnFailure, not {named or 'Always, the default'}"
                yield Fault(policy.key_place, reason, "restartPolicy: Never")
            if label and not _LABEL.fullmatch(label.text()):
                yield Fault(
                    label.place, f"a subdomain is a DNS label, which {label.text()} is not", "the Service's name"
                )
        for container in containers(document):
            requests = container.get("resources", "requests")
            for key, value in requests.items() if requests else ():
                if key.endswith("/gpu") and container.text("resources", "limits", key) != value.text():
                    fix = f"limits: {{{key}: {value.text()}}}"
                    yield Fault(value.key_place, f"{key} is requested without an equal limit", fix)
        for entry in variables(document):
            given, own = entry.get("value"), entry.get("name")
            if given and given.is_number_or_switch:
                reason = f"the value of {entry.text('name')} is a number or boolean in YAML, but must be text"
                yield Fault(given.place, reason, f'value: "{given.text()}"')
            if own and kind == "TrainJob" and own.text().startswith("PET_"):
                reason = f"{own.text()} is set by Kubeflow Trainer: a TrainJob that sets it is refused"
                yield Fault(own.place, reason, "leave it out; numNodes and numProcPerNode decide it")
        yield from _of_pytorchjob(document) if kind == "PyTorchJob" else ()
        yield from _of_schema(document) if _is(document, "Job", "Pod") else ()


def _of_pytorchjob(document: Node) -> Iterator[Fault]:
    specs, given = document.get("spec", "pytorchReplicaSpecs"), document.get("spec", "nprocPerNode")
    if given and not given.is_text:
        fix = f'nprocPerNode: "{given.text()}"'
        yield Fault(given.place, "nprocPerNode must be a string: the cluster refuses a number", fix)
    if specs and specs.get("Worker") and not specs.get("Master") and not document.get("spec", "elasticPolicy"):
        fix = "make one of them the Master with replicas: 1, or give an elasticPolicy"
        yield Fault(specs.key_place, "Workers without a Master get neither MASTER_ADDR nor a rank", fix)
    for kind, role in roles(document):
        count, policy = role.get("replicas"), role.get("restartPolicy")
        names = [container.get("name") for container in role.elements("template", "spec", "containers")]
        if kind not in ("Master", "Worker"):
            reason = f"a PyTorchJob has only the types Master and Worker: the operator refuses {kind}"
            meant = difflib.get_close_matches(kind.capitalize(), ["Master", "Worker"], n=1)
            yield Fault(role.key_place, reason, f"{(meant or ['Worker'])[0]}:")
        elif count and kind == "Master" and number(count.text()) not in (1, None):
            reason = f"a PyTorchJob has one Master, the node with rank 0: {count.text()} are refused"
            yield Fault(count.place, reason, "replicas: 1, and the other pods as Workers")
        elif count and count.text() == "0":
            yield Fault(count.place, "the operator makes a pod even for 0 Workers", "leave the Workers out")
        if policy and policy.text() not in _POLICIES["PyTorchJob"]:
            yield Fault(policy.place, f"a PyTorchJob has no restart policy {policy.text()}", "restartPolicy: OnFailure")
        named = [name for name in names if name]
        if named and all(name.text() != "pytorch" for name in named):
            reason = "the operator refuses a PyTorchJob without a container called pytorch"
            yield Fault(named[0].place, reason, "name: pytorch")


def _of_schema(document: Node) -> Iterator[Fault]:
    """Yield the first key that Kubernetes does not know; only where kubernetes-validate is installed."""
    try:
        import kubernetes_validate
    except ImportError:
        return
    try:
        kubernetes_validate.validate(document.plain(), kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        names = re.findall(r"'(\w+)'", error.message) if "dditional properties" in error.message else []
        owner = document.at(list(error.path))
        key = owner.get(names[0]) if owner and names else None
        if key:
            yield Fault(key.key_place, f"Kubernetes knows no key {names[0]} here", "remove it, or see kubectl explain")
    except Exception:  # it has no schema for this version, or the values are none of Kubernetes
        return


@rule
def gpus_stay_idle(documents: Documents) -> Iterator[Fault]:
    for document in documents:
        trainer, told = document.get("spec", "trainer"), document.get("spec", "nprocPerNode")
        count = document.get("spec", "trainer", "numProcPerNode")
        if trainer and count:
            yield from _compared(count.place, count.text(), gpus(trainer, "resourcesPerNode", "limits"))
        for container in containers(document):
            found = [launch for launch in _launches(container) if launch.trains]
            script, asked = started(container), gpus(container)
            own = [launch.options["nproc-per-node"] for launch in found if "nproc-per-node" in launch.options]
            if script and own and found[0].kind == "torchrun":
                yield from _compared(script.place(own[0].text), own[0].value, asked)
            elif told and found and found[0].kind == "torchrun":
                yield from _compared(told.place, told.text(), asked)
            elif found and _is(document, "PyTorchJob") and found[0].kind in ("python", "torchrun"):
                place = container.get("command") or container.get("args") or container
                yield from _compared(place.key_place, "1", asked)


def _compared(place: Place, starts: str, asked: int | None) -> Iterator[Fault]:
    processes = number(starts)
    if processes and asked and processes != asked:
        yield Fault(place, idle(processes, asked, "pod"), f"torchrun --nproc-per-node={asked}")


@rule
def each_node_trains_alone(documents: Documents) -> Iterator[Fault]:
    for document in documents if not any(document.get("spec", "plugins", "pytorch") for document in documents) else ():
        for group in groups(document) if document.text("kind") in ("Job", "JobSet") else ():
            count = number(group.size) or 1
            for container in group.template.elements("spec", "containers") if count > 1 else ():
                script = started(container)
                for launch in _launches(container):
                    told = {"nnodes", "standalone"} & set(launch.options) or container.get("envFrom") or launch.open
                    if launch.kind == "torchrun" and script and not told and "PET_NNODES" not in script.environment:
                        reason = f"without --nnodes, torchrun treats each of the {count} pods as a job of one node"
                        yield Fault(script.place(launch.text), reason)


@rule
def nnodes_are_not_the_nodes(documents: Documents) -> Iterator[Fault]:
    for document in documents:
        for group in groups(document) if _is(document, "Job", "JobSet") else ():
            for container in group.template.elements("spec", "containers"):
                script, count = started(container), number(group.size)
                for launch in _launches(container):
                    told = number(launch.value("nnodes"))
                    if script and told and count and told != count and launch.kind == "torchrun":
                        reason = f"the launcher is told of {told} nodes, but there are {count} pods"
                        yield Fault(script.place(launch.options["nnodes"].text), reason, f"--nnodes={count}")


@rule
def name_does_not_resolve(documents: Documents) -> Iterator[Fault]:
    services = {each.text("metadata", "name"): each for each in documents if _is(each, "Service")}
    for document in documents:
        job, namespace = document.text("metadata", "name"), document.text("metadata", "namespace")
        for group in groups(document):
            own, subdomain = group.template.get("spec", "hostNetwork"), group.template.text("spec", "subdomain")
            dns = group.template.text("spec", "dnsPolicy")
            if own and own.text() == "true" and dns != "ClusterFirstWithHostNet" and not _is(document, "Deployment"):
                reason = "pods with hostNetwork ask the node's name server, which knows no Service and no pod"
                yield Fault(own.place, reason, "dnsPolicy: ClusterFirstWithHostNet")
            for entry in variables(document) if _is(document, "Job") and job else ():
                value = entry.get("value") if entry.text("name") in ("MASTER_ADDR", "PET_MASTER_ADDR") else None
                meant = _ADDRESS.match(value.text()) if value else None
                if not value or not meant or meant[1] != f"{job}-0":
                    continue
                service, why = services.get(meant[2] or ""), ""
                if not subdomain or meant[2] != subdomain:
                    why = f"the pods' subdomain is {subdomain}" if subdomain else "the pods have no subdomain"
                elif services and service is None:
                    why = f"there is no Service {meant[2]} here"
                elif service and service.text("metadata", "namespace") != namespace:
                    why = f"the Service {meant[2]} is in another namespace"
                if why:
                    yield Fault(value.place, f"{value.text()} does not resolve: {why}")
    for service in services.values():
        selector, headless = service.get("spec", "selector"), service.text("spec", "clusterIP") == "None"
        keys = [key.rpartition("/")[2] for key, _ in selector.items()] if selector and headless else []
        late = service.text("spec", "publishNotReadyAddresses") != "true"
        if selector and late and {"job-name", "jobset-name"} & set(keys):
            reason = "a pod gets its DNS name only when it is ready, but the pods need each other's names before that"
            yield Fault(selector.key_place, reason, "publishNotReadyAddresses: true")


@rule
def port_may_be_taken(documents: Documents) -> Iterator[Fault]:
    for document in documents:
        for group in groups(document):
            own, port = group.template.get("spec", "hostNetwork"), ""
            for container in group.template.elements("spec", "containers"):
                ports = {each.text("name"): each.text("containerPort") for each in container.elements("ports")}
                env = {each.text("name"): each.text("value") for each in container.elements("env")}
                port = env.get("PET_MASTER_PORT") or env.get("MASTER_PORT") or ports.get("pytorchjob-port") or port
            common = port in ("23456", "29500") or (not port and _is(document, "PyTorchJob"))  # the defaults
            if own and own.text() == "true" and common:
                fix = "give the job its own port, and its pods anti-affinity"
                yield Fault(own.place, "with hostNetwork, two jobs with the same port cannot share a node", fix)


@rule
def shared_memory_is_small(documents: Documents) -> Iterator[Fault]:
    for document in documents:
        for group in groups(document) if not any(each.has("hostIPC") for each in documents) else ():
            for container in group.template.elements("spec", "containers"):
                mounted = any(mount.text("mountPath") == "/dev/shm" for mount in container.elements("volumeMounts"))
                trains = any(each.is_agent or each.kind == "deepspeed" for each in _launches(container))
                if trains and not mounted and (gpus(container) or 0) > 1:
                    reason = "/dev/shm of a container has 64 MiB, too little for NCCL between its processes"
                    yield Fault((container.get("name") or container).place, reason)


@rule
def shell_keeps_the_signal(documents: Documents) -> Iterator[Fault]:
    for container in (container for document in documents for container in containers(document)):
        script, found = started(container), [each for each in _launches(container) if each.command.words]
        trained = [each for each in found if each.is_agent or each.kind == "deepspeed"]
        if script is None or not script.shell or not trained or trained[-1].command.words[0].value == "exec":
            continue
        last = trained[-1]
        plain = found[-1] is last and not last.command.background and last.command.after not in ("|", "||")
        if not plain or (script.shell != "bash" and len(found) > 1):
            reason = "the shell is process 1 and does not hand on SIGTERM: the job is killed without a checkpoint"
            yield Fault(script.place(last.text), reason)


@rule
def failure_is_not_handled(documents: Documents) -> Iterator[Fault]:
    for document in (each for each in documents if _is(each, "PyTorchJob")):
        spec, run = document.get("spec"), document.get("spec", "runPolicy")
        count = sum(number(role.text("replicas") or "1") or 0 for _, role in roles(document))
        policies = [policy for _, role in roles(document) if (policy := role.get("restartPolicy"))]
        exits = [policy for policy in policies if policy.text() == "ExitCode"]
        for policy in exits:
            reason = "torchrun exits with 1 after any failure, and ExitCode restarts no pod that exits with 1"
            yield Fault(policy.place, reason, "restartPolicy: OnFailure with a backoffLimit")
        again = not policies or {policy.text() for policy in policies} & {"OnFailure", "Always"}
        if spec and roles(document) and again and not exits and not document.get("spec", "runPolicy", "backoffLimit"):
            yield Fault((run or spec).key_place, "a failing job is restarted forever", "runPolicy: {backoffLimit: 3}")
        clean = document.get("spec", "runPolicy", "cleanPodPolicy")
        if clean and clean.text() == "None" and count > 1:
            reason = "when one pod fails, the others stay and hold their GPUs"
            yield Fault(clean.place, reason, "cleanPodPolicy: Running")
        least = document.get("spec", "runPolicy", "schedulingPolicy", "minAvailable")
        needed = number(least.text()) if least else None
        if least and needed is not None and needed < count:
            reason = f"{needed} of {count} pods may start alone, and hold their GPUs while they wait for the rest"
            yield Fault(least.place, reason, f"minAvailable: {count}")


@rule
def variable_is_the_operators(documents: Documents) -> Iterator[Fault]:
    for document in (each for each in documents if _is(each, "PyTorchJob")):
        for entry in variables(document):
            name = entry.get("name")
            if name and name.text() in _BY_OPERATOR:
                reason = f"the operator adds its own {name.text()} to each pod, and the operator's value wins"
                yield Fault(name.place, reason)


@rule
def queue_label_is_inert(documents: Documents) -> Iterator[Fault]:
    for document in documents:
        alone = _is(document, "Pod", "Deployment") or document.get("metadata", "labels", _QUEUE)
        for group in groups(document) if not alone else ():
            label = group.template.get("metadata", "labels", _QUEUE)
            if label:
                kind = document.text("kind")
                yield Fault(label.key_place, f"Kueue ignores this label on the pods: it reads the labels of the {kind}")


@rule
def secret_in_file(documents: Documents) -> Iterator[Fault]:
    for entry in (entry for document in documents for entry in variables(document)):
        value = entry.get("value")
        if value and is_secret(entry.text("name"), value.text()):
            reason = f"everybody who may read the object can read the value of {entry.text('name')}"
            yield Fault(masked(value.key_place), reason, "valueFrom: {secretKeyRef: {name: …, key: …}}")
