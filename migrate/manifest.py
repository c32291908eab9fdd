"""A manifest with one training job as a draft of a spec: PyTorchJob, TrainJob, JobSet or Job."""

from __future__ import annotations

from collections.abc import Mapping

from jobspec.problems import Place, Problem, SpecError
from lint.manifest import Node, documents
from lint.pods import containers, templates
from lint.sbatch import number
from migrate.bash import main_launch
from migrate.draft import NOT_SAID, Draft
from migrate.pod import lines_of, say_containers, say_field, say_pod
from migrate.program import say_processes, say_program

TARGETS = {"PyTorchJob": "pytorchjob", "TrainJob": "trainjob", "JobSet": "jobset", "Job": "indexedjob"}
_METADATA = {
    "name": "name",
    "generateName": "name",
    "namespace": "kubernetes.namespace",
    "kueue.x-k8s.io/queue-name": "kubernetes.queue",
    "kueue.x-k8s.io/priority-class": "kubernetes.workload_priority_class",
}


def read_manifests(texts: Mapping[str, str]) -> Draft:
    """Return the draft of the first training job in some manifests.  Raises SpecError if there is none."""
    read = [one for file, text in texts.items() for one in documents(text, file)]
    found = [each for one in read for each in (one.elements("items") if one.text("kind") == "List" else [one])]
    jobs = [each for each in found if each.text("kind") in TARGETS and "volcano" not in each.text("apiVersion")]
    if not jobs:
        place, message = Place(next(iter(texts)), 1, 1, 1, ""), f"no {', '.join(TARGETS)} is in this manifest"
        raise SpecError([Problem(place, message, "give the manifest of the training job")])
    job = next((each for each in jobs if each.text("kind") != "Job"), jobs[0])
    is_ours = any(text.startswith("# Rendered by `render.py ") for text in texts.values())
    names = " ".join(file.rpartition("/")[2] for file in texts)
    draft = Draft(names, TARGETS[job.text("kind")], texts.values(), is_ours)
    named = job.text("spec", "runtimeRef", "name")
    runtimes = [each for each in found if each.text("kind").endswith("TrainingRuntime")]
    owners = [*(each for each in runtimes if each.text("metadata", "name") == named), job]
    for other in found:
        if not any(other is owner for owner in owners):
            is_headless = other.text("kind") == "Service" and other.text("spec", "clusterIP") == "None"
            why = "" if is_headless else "another object: apply it apart from the job"
            draft.lose(f"{other.text('kind')} {other.text('metadata', 'name')}", lines_of(other), why)
    if named and len(owners) == 1:
        draft.say("kubernetes.runtime", named, lines_of(job.get("spec", "runtimeRef") or job))
    _say_job(draft, job, owners)
    return draft


def _say_job(draft: Draft, job: Node, owners: list[Node]) -> None:
    """Say a job; owners: it and, in front of it, its runtime if that is in the manifest."""
    pods = [pod for owner in owners for pod in templates(owner)]
    inside = [each for pod, _ in pods for each in pod.elements("spec", "containers")]
    gpus = [each for each in inside if any(name.endswith("/gpu") for name, _ in each.items("resources", "limits"))]
    named = [each for each in inside if each.text("name") in ("pytorch", "node", "trainer")]
    main, trainer = next(iter([*gpus, *named, *inside]), None), job.get("spec", "trainer")
    runs = trainer if trainer and (trainer.get("command") or trainer.get("args")) else main
    _say_nodes(draft, job, owners, pods)
    for owner in owners:
        for key, node in owner.items():
            _say_field(draft, ("job" if owner is job else "runtime", key), node, main, runs)
    made = [each for owner in owners for each in containers(owner)]
    script = next((each.script for each in made if runs and each.node.raw is runs.raw), None)
    given = [each for key in ("command", "args") if runs and (each := runs.get(key))]
    launch = None
    if runs and script and script.text and (runs.get("command") or not given):
        launch = main_launch(script)
    asked = draft.get("gpus_per_node")
    if script:
        say_processes(draft, script, launch, 1, asked if isinstance(asked, int) else None, NOT_SAID)
    if script and launch:
        say_program(draft, script, launch, ", ".join(map(lines_of, given)))
    else:
        draft.lose("the image's own program, or its arguments alone", lines_of(runs or job), "a spec says what runs")
    if asked in (None, 0):
        draft.said.pop(("gpus_per_node",), None)
        draft.say("device", "cpu", NOT_SAID, "the pods ask for no GPUs")
    if not draft.get("kubernetes.security") and not draft.get("kubernetes.runtime"):
        level = "privileged" if draft.get("kubernetes.host_network") else "baseline"
        draft.say("kubernetes.security", level, NOT_SAID, "as the source, which runs as the image's user")


def _say_nodes(draft: Draft, job: Node, owners: list[Node], pods: list[tuple[Node, int | None]]) -> None:
    least, most = (job.text("spec", "elasticPolicy", key) for key in ("minReplicas", "maxReplicas"))
    paths = (("spec", "replicatedJobs"), ("spec", "template", "spec", "replicatedJobs"))
    jobs = [each for owner in owners for path in paths for each in owner.elements(*path)]
    times = [number(each.text("replicas")) or 1 for each in jobs] if len(jobs) == len(pods) else [1] * len(pods)
    total = sum(times[at] * (1 if size is None else size) for at, (_, size) in enumerate(pods))
    roles = [job.get("spec"), *(role for _, role in job.items("spec", "pytorchReplicaSpecs"))]
    written = [text for role in roles if role for key in ("replicas", "parallelism") if (text := role.text(key))]
    given = [owner.text("spec", part, "numNodes") for owner in owners for part in ("mlPolicy", "trainer")]
    counts = [text for text in given if text][-1:]
    where = f"line {job.place.line}"
    if number(least) and number(most):
        draft.say("nodes", {"min": int(least), "max": int(most)}, where)
    elif any(number(text) is None for text in counts or written):
        draft.lose("the number of pods", where, "not a number")
    else:
        remark = f"{len(pods)} groups of pods become one" if len(pods) > 1 else ""
        draft.say("nodes", int(counts[0]) if counts else total or 1, where, remark)


def _say_field(draft: Draft, path: tuple[str, ...], node: Node, main: Node | None, runs: Node | None) -> None:
    """Say or name a field, and those below it."""
    key, below = path[-1], [*node.items(), *((path[-1], each) for each in node.elements())]
    if len(path) > 40:
        raise RecursionError
    if key == "metadata":
        for name, each in below:
            _say_metadata(draft, name, each, path[:-1] == ("job",))
    elif key == "trainer":
        say_containers(draft, [node], [], runs, lines_of(node))
    elif key == "spec" and (node.get("containers") or path[-2] == "podTemplateOverrides"):
        say_pod(draft, node, main, runs)
    elif not say_field(draft, key, node):
        for name, each in below:
            _say_field(draft, (*path, name), each, main, runs)
        if not below:
            draft.lose(f"{key}: {node.text()}", lines_of(node), "no key for it")


def _say_metadata(draft: Draft, part: str, node: Node, is_job: bool) -> None:
    for name, each in node.items() if part in ("labels", "annotations") else [(part, node)]:
        if name in _METADATA and (is_job or part != name):
            draft.say(_METADATA[name], each.text().rstrip("-"), lines_of(each))
        elif part != name:
            draft.say(("kubernetes", part, name), each.text(), lines_of(each))
        else:
            draft.lose(f"metadata.{part} {node.text()}", lines_of(node), "" if part in _METADATA else "no key for it")
