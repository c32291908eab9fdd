"""A manifest with one training job as a draft of a spec: PyTorchJob, TrainJob, JobSet or Job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jobspec.problems import Place, Problem, SpecError
from lint.manifest import Node, documents
from lint.pods import containers, templates
from lint.sbatch import number
from migrate.bash import keep_what_only_a_run_knows, main_launch
from migrate.draft import Draft
from migrate.pod import KEYS, RENDERED, lines_of, say_container, say_field, say_pod, value_of
from migrate.program import say_processes, say_program

TARGETS = {"PyTorchJob": "pytorchjob", "TrainJob": "trainjob", "JobSet": "jobset", "Job": "indexedjob"}
_QUEUE = {
    "kueue.x-k8s.io/queue-name": "kubernetes.queue",
    "kueue.x-k8s.io/priority-class": "kubernetes.workload_priority_class",
}
_PARTS = ("metadata", "containers", "template", "trainer", "elasticPolicy", "podTemplateOverrides")
_SIZES = ("replicas", "parallelism", "completions", "numNodes", "minReplicas", "maxReplicas", "suspend", "name")


def read_manifests(texts: Mapping[str, str]) -> Draft:
    """Return the draft of the first training job in some manifests.  Raises SpecError if there is none."""
    read = [one for file, text in texts.items() for one in documents(text, file)]
    found = [each for one in read for each in (one.elements("items") if one.text("kind") == "List" else [one])]
    jobs = [each for each in found if each.text("kind") in TARGETS and "volcano" not in each.text("apiVersion")]
    if not jobs:
        message = f"no {', '.join(TARGETS)} is in this manifest"
        raise SpecError(
            [Problem(Place(next(iter(texts)), 1, 1, 1, ""), message, "give the manifest of the training job")]
        )
    job = next((each for each in jobs if each.text("kind") != "Job"), jobs[0])
    draft = Draft(" ".join(texts), TARGETS[job.text("kind")], texts.values())
    draft.is_ours = any("# Rendered by `render.py " in text[:200] for text in texts.values())
    named = job.text("spec", "runtimeRef", "name")
    runtimes = [
        one for one in found if one.text("kind").endswith("TrainingRuntime") and one.text("metadata", "name") == named
    ]
    owners = [*runtimes[:1], job]
    for other in found:
        if not any(other is owner for owner in owners):
            is_headless = other.text("kind") == "Service" and other.text("spec", "clusterIP") == "None"
            why = "" if is_headless else "another object: apply it apart from the job"
            draft.lose(f"{other.text('kind')} {other.text('metadata', 'name')}", lines_of(other), why)
    if named and not runtimes:
        draft.say("kubernetes.runtime", named, lines_of(job))
    draft.say("name", (job.text("metadata", "name") or job.text("metadata", "generateName")).rstrip("-"), lines_of(job))
    if namespace := job.text("metadata", "namespace"):
        draft.say("kubernetes.namespace", namespace, lines_of(job))
    _read(draft, job, owners)
    return draft


def _read(draft: Draft, job: Node, owners: list[Node]) -> None:
    pods = [(template, size) for owner in owners for template, size in templates(owner)]
    main = _main([each for template, _ in pods for each in template.elements("spec", "containers")])
    trainer = job.get("spec", "trainer")
    runs = trainer if trainer and (trainer.get("command") or trainer.get("args")) else main
    _say_nodes(draft, job, owners, pods)
    for template in [*owners, *(template for template, _ in pods)]:
        _say_metadata(draft, template)
    patches = [each.get("spec") for each in job.elements("spec", "podTemplateOverrides")]
    for pod in filter(None, [*(template.get("spec") for template, _ in pods), *patches]):
        say_pod(draft, pod, main, runs)
    if trainer:
        say_container(draft, trainer, runs)
    for owner in owners:
        for key, node in owner.items("spec"):
            _say_rest(draft, key, node)
    made = [each for owner in owners for each in containers(owner)]
    script = next((each.script for each in made if runs and each.node.raw is runs.raw), None)
    launch = None
    if runs and script and script.text and (runs.get("command") or not runs.get("args")):
        keep_what_only_a_run_knows(script)
        launch = main_launch(script)
    gpus = draft.said.pop(("gpus_per_node",), None)
    if script:
        say_processes(draft, script, launch, 1, gpus.value if gpus else None)
    if launch and script and runs:
        texts = [lines_of(each) for each in (runs.get("command"), runs.get("args")) if each]
        say_program(draft, script, launch, ", ".join(texts))
    else:
        draft.lose("the image's own program, or its arguments alone", lines_of(runs or job), "a spec says what runs")
    if gpus:
        draft.lose("GPUs, which are procs_per_node or gpus_per_node", gpus.where)
    elif not any("/gpu:" in text for text, _ in draft.left):
        draft.say("device", "cpu", "not said", "the pods ask for no GPUs")
    if not draft.get("kubernetes.security") and not draft.get("kubernetes.runtime"):
        level = "privileged" if draft.get("kubernetes.host_network") else "baseline"
        draft.say("kubernetes.security", level, "not said", "as the source, which runs as the image's user")


def _main(found: list[Node]) -> Node | None:
    """Return the container that trains: one with GPUs, else one with an operator's name, else the first."""
    limits = [[name for name, _ in each.items("resources", "limits")] for each in found]
    gpus = [each for each, names in zip(found, limits, strict=True) if any(name.endswith("/gpu") for name in names)]
    named = [each for each in found if each.text("name") in ("pytorch", "node", "trainer")]
    return next(iter([*gpus, *named, *found]), None)


def _say_metadata(draft: Draft, owner: Node) -> None:
    for part in ("labels", "annotations"):
        for name, value in owner.items("metadata", part):
            draft.say(_QUEUE.get(name, ("kubernetes", part, name)), value.text(), lines_of(value))
    for key, node in owner.items("metadata"):
        if key not in ("name", "generateName", "namespace", "labels", "annotations"):
            draft.lose(f"metadata.{key}", lines_of(node), "no key for it")


def _say_nodes(draft: Draft, job: Node, owners: list[Node], pods: list[tuple[Node, int | None]]) -> None:
    least, most = (number(job.text("spec", "elasticPolicy", key)) for key in ("minReplicas", "maxReplicas"))
    sizes = [1 if size is None else size for _, size in pods]
    jobs = [each for owner in owners for each in owner.elements("spec", "replicatedJobs")]
    if len(jobs) == len(sizes):
        sizes = [size * (number(each.text("replicas")) or 1) for size, each in zip(sizes, jobs, strict=True)]
    given = [
        owner.text("spec", *path) for owner in owners for path in (("trainer", "numNodes"), ("mlPolicy", "numNodes"))
    ]
    counts = [text for text in given if text]
    roles = [owner for _, owner in job.items("spec", "pytorchReplicaSpecs")]
    written = [*counts, *(each.text(key) for each in [*roles, *job.elements("spec")] for key in ("replicas",))]
    where = ", ".join(
        dict.fromkeys(lines_of(pod).partition("-")[0].replace("lines", "line") for pod, _ in pods)
    ) or lines_of(job)
    if least and most:
        draft.say("nodes", {"min": least, "max": most} if least != most else most, where)
    elif any(text and number(text) is None for text in written):
        draft.lose("the number of pods", where, "not a number")
    else:
        total = number(counts[-1]) if counts else sum(sizes)
        draft.say("nodes", total or 1, where, f"{len(sizes)} groups of pods become one" if len(sizes) > 1 else "")


def _say_rest(draft: Draft, key: str, node: Node, depth: int = 0) -> None:
    """Say the fields of a job above its pods, and name those without a key."""
    if depth > 40:
        raise RecursionError
    if key in _SIZES or key in RENDERED:
        draft.lose(f"{key} {node.text()}", lines_of(node))
    elif key in KEYS and say_field(draft, key, node):
        pass
    elif (
        key not in ("template", "trainer", "podTemplateOverrides")
        or node.get("spec", "replicatedJobs")
        or node.get("spec", "template")
    ):
        below = [*node.items(), *((key, each) for each in node.elements())]
        for name, each in below:
            _say_rest(draft, name, each, depth + 1)
        if not below:
            draft.lose(f"{key}: {node.text()}", lines_of(node), "no key for it")
