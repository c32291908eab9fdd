"""A manifest with one job as a draft of a spec; what pods have and no key stands for becomes `kubernetes.pod`."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jobspec.problems import Place, Problem, SpecError
from jobspec.spec.variables import is_set_by_launcher, names_secret
from lint.manifest import Node, containers, documents, templates
from lint.sbatch import number
from migrate.bash import main_launch
from migrate.draft import NOT_SAID, Draft, duration
from migrate.program import say_processes, say_program

TARGETS = {"PyTorchJob": "pytorchjob", "TrainJob": "trainjob", "JobSet": "jobset", "Job": "indexedjob"}
_METADATA = {"name": "name", "generateName": "name", "namespace": "kubernetes.namespace"}
_METADATA |= {"kueue.x-k8s.io/queue-name": "kubernetes.queue"}
_NAMES_OF_KEYS = """
    activeDeadlineSeconds=time_limit ttlSecondsAfterFinished=kubernetes.ttl image=image workingDir=workdir
    backoffLimit=max_restarts maxRestarts=max_restarts nprocPerNode=procs_per_node nProcPerNode=procs_per_node
    numProcPerNode=procs_per_node nodeSelector=kubernetes.node_selector tolerations=kubernetes.tolerations
    imagePullSecrets=kubernetes.image_pull_secrets imagePullPolicy=kubernetes.image_pull_policy
    hostNetwork=kubernetes.host_network schedulerName=kubernetes.scheduler
    priorityClassName=kubernetes.priority_class serviceAccountName=kubernetes.service_account
"""
_KEYS = dict(pair.split("=") for pair in _NAMES_OF_KEYS.split())  # of fields of a job, its pods and its container
_NAMES_OF_RENDERED = """
    apiVersion kind restartPolicy subdomain hostname cleanPodPolicy completionMode ports rdzvBackend rdzvPort rdzvHost
    podReplacementPolicy enableDNSHostnames publishNotReadyAddresses command args name runtimeRef suspend
    replicas parallelism completions numNodes minReplicas maxReplicas
"""
_RENDERED = frozenset(_NAMES_OF_RENDERED.split())  # every manifest has them, or other code here reads them

_OF_KUBELET = re.compile(r"\$(\$|\([^()]+\))")  # in a value, $$ is $ and $(NAME) another variable


def read_manifests(texts: Mapping[str, str]) -> Draft:
    """Return the draft of the first training job in some manifests.  Raises SpecError if there is none."""
    several = len(texts) > 1
    found = [replace(one, file=file * several) for file, text in texts.items() for one in documents(text, file)]
    jobs = [each for each in found if each.text("kind") in TARGETS and "volcano" not in each.text("apiVersion")]
    if not jobs:
        place, message = Place(next(iter(texts)), 1, 1, 1, ""), f"no {', '.join(TARGETS)} is in this manifest"
        raise SpecError([Problem(place, message, "give the manifest of the training job")])
    job = next((each for each in jobs if each.text("kind") != "Job"), jobs[0])
    names = " ".join(file.rpartition("/")[2] for file in texts)
    draft = Draft(names, TARGETS[job.text("kind")], texts.values())
    named = job.text("spec", "runtimeRef", "name")
    runtimes = [each for each in found if each.text("kind").endswith("TrainingRuntime")]
    owners = [*(each for each in runtimes if each.text("metadata", "name") == named), job]
    for other in found:
        if not any(other is owner for owner in owners):
            text = f"{other.text('kind')} {other.text('metadata', 'name')}"
            draft.lose(text, _lines_of(other), "another object: if the job still needs it, apply it apart")
    if named and len(owners) == 1:
        draft.say("kubernetes.runtime", named, _lines_of(job.get("spec", "runtimeRef") or job))
    _say_job(draft, job, owners)
    return draft


def _say_job(draft: Draft, job: Node, owners: list[Node]) -> None:
    """Say a job; owners: it and, in front of it, its runtime if that is in the manifest."""
    pods = [pod for owner in owners for pod in templates(owner)]
    inside = [each for pod, _ in pods for each in pod.elements("spec", "containers")]
    gpus = [each for each in inside if any(name.endswith("/gpu") for name, _ in each.items("resources", "limits"))]
    main, trainer = next(iter([*gpus, *inside]), None), job.get("spec", "trainer")
    runs = trainer if trainer and (trainer.get("command") or trainer.get("args")) else main
    _say_nodes(draft, job, owners, pods)
    for owner in owners:
        for key, node in owner.items():
            _say_field(draft, ("job" if owner is job else "runtime", key), node, main, runs)
    made = [each for owner in owners for each in containers(owner)]
    script = next((each.script for each in made if runs and each.node.raw is runs.raw), None)
    given = [each for key in ("command", "args") if runs and (each := runs.get(key))]
    launch = main_launch(script) if script and runs and script.text and (runs.get("command") or not given) else None
    if script:
        say_processes(draft, script, launch, 1, NOT_SAID)
    if script and launch:
        say_program(draft, script, launch, ", ".join(map(_lines_of, given)))
    else:
        draft.lose(f"the image's own program {list(map(_value_of, given))}", _lines_of(runs or job), "say what runs")
    if not draft.get("kubernetes.security") and not draft.get("kubernetes.runtime"):
        level = "privileged" if draft.get("kubernetes.host_network") else "baseline"
        draft.say("kubernetes.security", level, NOT_SAID, "as the source, which runs as the image's user")


def _say_nodes(draft: Draft, job: Node, owners: list[Node], pods: list[tuple[Node, int | None]]) -> None:
    least, most = (job.text("spec", "elasticPolicy", key) for key in ("minReplicas", "maxReplicas"))
    paths = (("spec", "replicatedJobs"), ("spec", "template", "spec", "replicatedJobs"))
    jobs = [each for owner in owners for path in paths for each in owner.elements(*path)]
    times = [number(each.text("replicas")) or 1 for each in jobs] if len(jobs) == len(pods) else [1] * len(pods)
    total = sum(times[at] * (1 if size is None else size) for at, (_, size) in enumerate(pods))
    given = [owner.text("spec", part, "numNodes") for owner in owners for part in ("mlPolicy", "trainer")]
    told = next(filter(None, reversed(given)), "")
    unclear = any(owner.says(r"\b(?:replicas|parallelism|numNodes): *[\"']?[^\s\d\"']") for owner in owners)
    where = _lines_of(job.get("spec", "parallelism") or job)
    if number(least) and number(most):
        draft.say("nodes", {"min": int(least), "max": int(most)}, where)
    elif unclear or (told and number(told) is None):
        draft.lose("the number of pods", where, "not a number")
    else:
        remark = f"{len(pods)} groups of pods become one" * (len(pods) > 1)
        draft.say("nodes", int(told) if told else total or 1, where, remark)


def _say_field(draft: Draft, path: tuple[str, ...], node: Node, main: Node | None, runs: Node | None) -> None:
    """Say or name a field, and those below it."""
    key, below = path[-1], [*node.items(), *((path[-1], each) for each in node.elements())]
    if len(path) > 40:
        raise RecursionError
    if key == "metadata":
        for name, each in below:
            _say_metadata(draft, name, each, path[:-1] == ("job",))
    elif key == "trainer":
        _say_containers(draft, [node], [], runs)
    elif key == "spec" and (node.get("containers") or path[-2] == "podTemplateOverrides"):
        _say_pod(draft, node, main, runs)
    elif not _say_key(draft, key, node):
        for name, each in below:
            _say_field(draft, (*path, name), each, main, runs)
        if not below:
            draft.lose(f"{key}: {node.text()}", _lines_of(node), "no key for it")


def _say_metadata(draft: Draft, part: str, node: Node, is_job: bool) -> None:
    for name, each in node.items() if part in ("labels", "annotations") else [(part, node)]:
        if name in _METADATA and (is_job or part != name):
            draft.say(_METADATA[name], each.text().rstrip("-"), _lines_of(each))
        elif part != name:
            draft.say(("kubernetes", part, name), each.text(), _lines_of(each))
        else:
            draft.lose(f"metadata.{part} {node.text()}", _lines_of(node), "" if part in _METADATA else "no key for it")


def _lines_of(node: Node) -> str:
    first, end = node.key_place.line, node.raw.end_mark
    last = max(first, end.line + (end.column > 0))
    return f"{node.file} line{f's {first}-{last}' if first < last else f' {first}'}".lstrip()


def _say_key(draft: Draft, key: str, node: Node) -> bool:
    """Say or name a field that needs no thought; return False for any other."""
    value, count = _value_of(node), number(node.text())
    if key in _RENDERED:
        draft.lose(f"{key} {node.text()}", _lines_of(node), _why_not(draft, key, node))
    elif key == "backoffLimit" and count is not None:
        _say_limit(draft, count, _lines_of(node))
    elif key in _KEYS:
        if "Seconds" in key:
            value = duration(count) if count else None
        elif _KEYS[key] in ("max_restarts", "procs_per_node"):
            value = count
        elif key == "imagePullSecrets":
            value = [each.text("name") for each in node.elements()]
        if value is None:
            draft.lose(f"{key}: {node.text()}", _lines_of(node), f"no value for {_KEYS[key]}")
        else:
            draft.say(_KEYS[key], value, _lines_of(node))
    return key in _RENDERED or key in _KEYS


def _why_not(draft: Draft, key: str, node: Node) -> str:
    """Return why a field is not taken that every manifest has, but with another value; empty if nothing is lost."""
    if key == "suspend" and node.text() == "true" and not draft.get("kubernetes.queue"):
        return "without a queue of Kueue the job starts at once"
    if key == "completions" and draft.target == "indexedjob" and number(node.text()) != draft.get("nodes"):
        return "all pods of a job start together: as many as nodes"
    return ""


def _say_limit(draft: Draft, count: int, where: str) -> None:
    """Say the `backoffLimit` of a Job or PyTorchJob, which counts pods; a JobSet counts restarts of all its pods."""
    nodes, own = draft.get("nodes"), 1 if draft.target == "pytorchjob" else 0  # it fails when it reaches the limit
    if draft.target in ("indexedjob", "pytorchjob"):
        nodes = nodes["max"] if isinstance(nodes, dict) else nodes or 1
        restarts = -(-max(0, count - own) // nodes)
        remark = f"backoffLimit is {count} pods: all {nodes} fail together" if restarts != count else ""
        draft.say("max_restarts", restarts, where, remark)
    elif count and draft.get("max_restarts") is None:
        draft.say("max_restarts", count, where)
    else:
        draft.lose(f"backoffLimit {count}", where, "max_restarts counts restarts of all pods" if count else "")


def _say_pod(draft: Draft, pod: Node, main: Node | None, runs: Node | None) -> None:
    """Say a pod.  main: the container that trains; runs: that or the trainer, whose command is the program."""
    inside = pod.elements("containers")
    own = [each for each in inside if main and each.text("name") == main.text("name")] or inside[:1]
    shm = {x.text("name"): _lines_of(x) for each in own for x in each.elements("volumeMounts") if _is_shm(x)}
    for key, node in pod.items():
        if key == "containers":
            _say_containers(draft, own, [each for each in inside if each not in own], runs)
        elif key == "volumes":
            for each in (each for each in node.elements() if each.text("name") in shm):
                size = each.text("emptyDir", "sizeLimit")
                where = f"{_lines_of(each)}, {shm[each.text('name')]}"
                draft.say("resources.shm", f"{size}B" if size else "no limit", where)
            others = [_value_of(each) for each in node.elements() if each.text("name") not in shm]
            _say_piece(draft, key, others, _lines_of(node))
        elif not _say_key(draft, key, node):
            _say_piece(draft, key, _value_of(node), _lines_of(node))


def _say_containers(draft: Draft, own: list[Node], others: list[Node], runs: Node | None) -> None:
    """Say the containers of a pod, or the trainer of a TrainJob; own: those that train."""
    rest, places = dict[str, Any](), list(map(_lines_of, others))
    for key, node in (item for each in own for item in each.items()):
        value: Any = None
        if key in ("command", "args") and runs and _value_of(node) != _value_of(runs.get(key) or node):
            draft.lose(f"{key} {_value_of(node)}", _lines_of(node), "differs from that of the first pods")
        elif key == "env":
            value = [_value_of(entry) for entry in node.elements() if not _say_variable(draft, entry)]
        elif key in ("resources", "resourcesPerNode"):
            key, value = "resources", _say_resources(draft, node)
        elif key == "volumeMounts":
            value = [_value_of(each) for each in node.elements() if not _is_shm(each)]
        elif not _say_key(draft, key, node):
            value = _value_of(node)
        if value:
            rest[key], places = value, [*places, _lines_of(node)]
    given = [{"name": "node", **rest}] * bool(rest) + list(map(_value_of, others))
    _say_piece(draft, "containers", given, ", ".join(places))


def _is_shm(mount: Node) -> bool:
    return mount.text("mountPath").rstrip("/") == "/dev/shm"


def _say_piece(draft: Draft, key: str, value: Any, where: str) -> None:
    """Say a piece of `kubernetes.pod`, and that the pod is privileged if that is."""
    if re.search("'(?:hostPath|add|privileged)': [^F]", str(value)):
        draft.say("kubernetes.security", "privileged", where)
    if value not in ([], None):
        draft.say(("kubernetes", "pod", key), value, where)


def _say_variable(draft: Draft, entry: Node) -> bool:
    """Say a variable; return False if it takes its value from the pod."""
    name, text, where = entry.text("name"), entry.text("value"), _lines_of(entry)
    if name == "PET_NPROC_PER_NODE" and number(text):
        draft.say("procs_per_node", number(text), where)
    elif is_set_by_launcher(name):
        draft.lose(name, where)
    elif names_secret(name) and text:
        draft.say_secret(name, text, where)
    elif entry.get("valueFrom") or any(one[1] != "$" for one in _OF_KUBELET.finditer(text)):
        return False
    else:
        draft.say(("env", name), _OF_KUBELET.sub("$", text), where)
    return True


def _say_resources(draft: Draft, node: Node) -> dict[str, Any]:
    """Say limits; return what a spec has no key for."""
    limits, requests = dict(node.items("limits")), dict(node.items("requests"))
    for name, each in {**requests, **limits}.items():
        value, count = each.text(), number(each.text())
        where = ", ".join(dict.fromkeys(_lines_of(part[name]) for part in (limits, requests) if name in part))
        remark = "" if name in limits else "only requested there; here also a limit"
        if name.endswith("/gpu"):
            if name != "nvidia.com/gpu":
                draft.say("kubernetes.gpu_resource", name, where)
            draft.say("gpus_per_node", (value or "?") if count is None else count, where)
        elif name == "memory":
            draft.say("resources.memory", f"{value}B", where, remark)
        elif count:
            draft.say("resources.cpus" if name == "cpu" else ("resources", "devices", name), count, where, remark)
        else:
            draft.lose(f"{name}: {value}", where, "not a whole number")
    less = {name: each.text() for name, each in requests.items() if limits.get(name, each).text() != each.text()}
    rest = {key: _value_of(each) for key, each in node.items() if key not in ("limits", "requests")}
    return rest | ({"requests": less} if less else {})


def _value_of(node: Node) -> Any:
    """Return a value as Kubernetes reads it, with whole numbers as such."""
    text = json.dumps(node.plain(), default=str, check_circular=False)
    return json.loads(text, parse_float=lambda text: int(float(text)) if float(text).is_integer() else float(text))
