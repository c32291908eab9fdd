"""Find what is correct in a spec but silently trains wrong, loses results or shows a secret: noted on stderr."""

import posixpath
import re
from collections.abc import Container, Iterable, Iterator
from pathlib import Path, PurePosixPath

from jobspec.spec import files
from jobspec.spec.job import Job
from jobspec.spec.mounts import normal
from jobspec.spec.variables import names_secret
from train.config import PATHS

# Other names may well be meant literally, as in a template.
_NAMES = r"(?:HOME|USER|PWD|SCRATCH|WORK|TMPDIR|PATH|LD_LIBRARY_PATH|PYTHONPATH|SLURM_[A-Z_]+)"
_VARIABLE = re.compile(rf"\$(?:{_NAMES}\b|\{{{_NAMES}\}})")
_ASSIGNED = re.compile(r"\b([A-Za-z_][A-Za-z0-9_]*)=[\"']?([^\s\"']+)")
_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # folders of a node alone


def doubts(job: Job, node_is_hidden: bool = False, not_used: Container[str] = ()) -> Iterator[str]:
    """Yield what looks odd, each with what to do.

    node_is_hidden: what the processes write outside of mounts ends with their container.
    not_used: keys that the target does without, and says so itself.
    """
    yield from _not_expanded(job)
    yield from _in_setup(job)
    for name, value in job.env.items():
        if value and names_secret(name):
            yield f"env.{name} looks like a secret, and its value is in the output; secrets: [{name}] keeps it out"
    if "CUDA_VISIBLE_DEVICES" in job.env:
        yield "env.CUDA_VISIBLE_DEVICES overrides the GPUs that the job gets from the cluster; leave it out"
    if job.max_restarts and job.train and job.train.checkpoint_dir is None and not job.train.evaluate_only:
        yield "train.checkpoint_dir is not given, so each restart loses all steps; give it, and resume: auto"
    elif job.max_restarts and job.train and job.train.resume == "never":
        yield "train.resume is never, so a restart finds checkpoints and refuses to run; write resume: auto"
    if "preemption" in job.model_fields_set and job.preemption is None and "preemption" not in not_used:
        yield "preemption is empty, as if it were not there; preemption: {} takes the defaults"
    yield from _lost_with_the_container(job) if node_is_hidden else _on_one_node(job)


def _not_expanded(job: Job) -> Iterator[str]:
    """Yield the values that a shell would change: a target quotes each value, so the processes get it as written."""
    texts = {f"train.{key}": getattr(job.train, key, None) or "" for key in PATHS}
    texts |= {f"env.{name}": value for name, value in job.env.items()}
    if not job.no_python:  # the program may be a shell
        texts |= {f"command[{number}]": word for number, word in enumerate(job.command or ())}
    for key, text in texts.items():
        home = re.match("~(?=/)", text) if not key.startswith("train.") else None  # train expands it
        if found := _VARIABLE.search(text) or home:
            yield f"{key} contains {found[0]}, which no shell replaces; write the value, or export it in setup"


def _in_setup(job: Job) -> Iterator[str]:
    for number, line in enumerate(job.setup):
        for name, value in _ASSIGNED.findall(line):
            if names_secret(name) and not value.startswith("$"):
                yield f"setup[{number}] sets {name}, which looks like a secret; secrets: [{name}] keeps its value out"


def _on_one_node(job: Job) -> Iterator[str]:
    paths = {f"command[{number}]": word for number, word in enumerate(job.command or ()) if job.preemption}
    if job.train and job.train.checkpoint_dir and (job.nodes.max > 1 or job.preemption):
        paths["train.checkpoint_dir"] = job.train.checkpoint_dir
    for key, path in paths.items():
        if _inside(path, _LOCAL) and not _inside(path, _kept(job)):
            yield f"{key} is {path}, a folder of each node: other nodes find no checkpoint there; use a shared folder"


def _kept(job: Job) -> list[str]:
    return [normal(mount.path) for mount in job.mounts if mount.source is not None or mount.claim is not None]


def _inside(path: str, folders: Iterable[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


def _lost_with_the_container(job: Job) -> Iterator[str]:
    why = dict.fromkeys(
        ("checkpoint_dir", "run_dir", "export"), "lost with the container: mount a source or claim there"
    )
    if job.train and job.train.dataset not in ("digits", "synthetic"):
        fetched = job.train.dataset in ("mnist", "fashion_mnist")
        otherwise = "or each start fetches the data" if fetched else "unless the image has the data"
        why["data_root"] = f"inside the container: mount a source or claim there, {otherwise}"
    for key, reason in why.items():
        path = getattr(job.train, key, None)
        if path is not None and job.workdir and not path.startswith("~"):
            path = posixpath.join(job.workdir, path)
        if path is not None and not _inside(path, _kept(job)):
            yield f"train.{key} is {path}, which is {reason}"
    script = job.command[0] if job.command and not job.setup and job.workdir is None else "-m"
    if Path(script).is_file() and not posixpath.isabs(script) and posixpath.normpath(script) not in files.listed(job):
        yield f"{script} does not travel with the job: list it in files, or have it in the image or a mount"
