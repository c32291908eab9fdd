"""What the keys of a job spec demand of each other, one rule a function.

A rule names the top-level keys that it reads, so that it is left out when one of them is wrong in itself: a
second message about the same slip helps nobody.  Targets have rules of their own in their files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from jobspec.fields import LINES, LINES_EXPECTED
from jobspec.plan import OURS, is_launchers, world_size
from jobspec.problems import Finding, Path
from jobspec.spec import Job

# Bash keeps these for itself: an assignment fails or is lost.
_BASHS = re.compile(
    "BASH.*|_|COMP_WORDBREAKS|DIRSTACK|EPOCHREALTIME|EPOCHSECONDS|E?UID|FUNCNAME|GROUPS|HISTCMD|LINENO|OPTIND"
    "|PIPESTATUS|PPID|S?RANDOM|SECONDS|SHELLOPTS|SHLVL"
)


@dataclass(frozen=True)
class Rule:
    """A check over several keys; `keys` are the top-level keys that it reads."""

    keys: tuple[str, ...]
    check: Callable[[Job], Iterable[Finding]]


def rule(*keys: str) -> Callable[[Callable[[Job], Iterable[Finding]]], Rule]:
    """Make a function of a job a rule that reads these top-level keys."""
    return lambda check: Rule(keys, check)


def rules_in(module: object) -> list[Rule]:
    """Every rule at the top level of a module, alone or in a tuple, in its order."""
    found: list[Rule] = []
    for value in vars(module).values():
        several = value if isinstance(value, tuple) else (value,)
        found += [one for one in several if isinstance(one, Rule)]
    return found


@rule("train", "command")
def one_program(job: Job) -> Iterator[Finding]:
    if job.train is None and job.command is None:
        yield Finding((), "neither train nor command: what should run?", "train: {model: mnist_cnn}", on_key=True)
    if job.train is not None and job.command is not None:
        yield Finding(("command",), "both train and command: only one can run", on_key=True)


@rule("command")
def command_begins_with_a_script(job: Job) -> Iterator[Finding]:
    if job.command is None:
        return
    first = job.command[0]
    if first == "-m":
        if len(job.command) == 1 or job.command[1].startswith("-"):
            yield Finding(("command", 0), "command: -m wants the name of a module after it")
    elif first in ("python", "python3", "torchrun"):
        yield Finding(("command", 0), f"command begins with {first}", "begin with the script; torchrun starts Python")
    elif first.startswith("-") or not first:
        message = "command must begin with a script or with -m and a module, not with an option"
        yield Finding(("command", 0), message, "Python would read the option as its own")


@rule("nodes")
def range_is_a_range(job: Job) -> Iterator[Finding]:
    if job.nodes.min > job.nodes.max:
        yield Finding(("nodes", "max"), f"nodes.max is {job.nodes.max}, below nodes.min ({job.nodes.min})")


@rule("nodes", "rendezvous")
def elastic_needs_c10d(job: Job) -> Iterator[Finding]:
    if job.nodes.elastic and job.rendezvous.backend == "static":
        message = "rendezvous.backend is static, but only c10d can change the number of nodes"
        yield Finding(("rendezvous", "backend"), message, "leave rendezvous.backend out")


@rule("train", "nodes", "procs_per_node")
def every_process_gets_samples(job: Job) -> Iterator[Finding]:
    """A batch that does not divide is fine: the train package weighs uneven shares exactly."""
    if job.train is None or job.train.batch_size >= world_size(job):
        return
    nodes = f"nodes {job.nodes.max} x procs_per_node {job.procs_per_node}"
    message = f"train.batch_size is {job.train.batch_size}, less than the {world_size(job)} processes ({nodes})"
    hint = "batch_size is the global batch of one step, shared by all processes"
    yield Finding(("train", "batch_size"), message, hint)


@rule("train", "device")
def one_device(job: Job) -> Iterator[Finding]:
    if job.train is not None and job.train.device not in ("auto", job.device):
        message = f"train.device is {job.train.device}, but device is {job.device}"
        yield Finding(("train", "device"), message, "leave train.device out; device is passed on")


@rule("train")
def settings_are_text(job: Job) -> Iterator[Finding]:
    """What becomes an argument can hold no zero byte, and a terminal must not obey what a log shows."""
    for key, value in job.train or ():
        if isinstance(value, str) and not re.fullmatch(LINES, value):
            yield Finding(("train", key), f"train.{key} must be {LINES_EXPECTED}, not {json.dumps(value)}")


@rule("train", "preemption")
def preempted_training_resumes(job: Job) -> Iterator[Finding]:
    if job.train is None or job.preemption is None:
        return
    if job.train.checkpoint_dir is None:
        message = "preemption is given, but train.checkpoint_dir is not: there would be nothing to resume from"
        yield Finding(("preemption",), message, "train: {checkpoint_dir: /checkpoints, resume: auto}", on_key=True)
    elif job.train.resume == "never":
        message = "preemption is given, but train.resume is never: a requeued job would begin again"
        yield Finding(("preemption",), message, "train: {resume: auto}", on_key=True)


@rule("env")
def launchers_variables_are_not_set(job: Job) -> Iterator[Finding]:
    for name in job.env:
        if is_launchers(name):
            message = f"env: {name} is set by the launcher for each process"
            hint = "leave it out; nodes, procs_per_node and rendezvous decide its value"
            yield Finding(("env", name), message, hint, on_key=True)


@rule("env", "secrets")
def bashs_variables_are_not_set(job: Job) -> Iterator[Finding]:
    names: list[Path] = [("env", name) for name in job.env]
    names += [("secrets", number) for number in range(len(job.secrets))]
    for path in names:
        name = path[1] if isinstance(path[1], str) else job.secrets[path[1]]
        if _BASHS.fullmatch(name):
            message = f"{path[0]}: {name} is a variable that bash keeps for itself"
            yield Finding(path, message, "choose another name", on_key=True)


@rule("secrets", "env")
def secrets_are_only_names(job: Job) -> Iterator[Finding]:
    for number, name in enumerate(job.secrets):
        if name in job.env:
            yield Finding(("env", name), f"env: {name} is a secret; its value must not be in the spec", on_key=True)
        if name in job.secrets[:number]:
            yield Finding(("secrets", number), f"secrets: {name} is given twice")
        if is_launchers(name) or name in OURS:
            yield Finding(("secrets", number), f"secrets: {name} is set for each process and cannot be a secret")


@rule("mounts")
def mounts_have_one_source_and_one_place(job: Job) -> Iterator[Finding]:
    for number, mount in enumerate(job.mounts):
        if (mount.source is None) == (mount.claim is None):
            message = f"mounts[{number}] needs either source (a folder of the node) or claim (a volume)"
            yield Finding(("mounts", number), message)
        if mount.path in [earlier.path for earlier in job.mounts[:number]]:
            yield Finding(("mounts", number, "path"), f"mounts[{number}].path: {mount.path} is mounted twice")
