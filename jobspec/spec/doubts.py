"""Find what is correct in a spec but probably not meant: render-job notes it on stderr, and still renders."""

import posixpath
import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path, PurePosixPath

from jobspec.spec import files
from jobspec.spec.job import Job
from jobspec.spec.mounts import normal
from jobspec.spec.sbatch_options import OPTIONS, PYXIS, meant
from jobspec.spec.variables import names_secret
from train.config import PATHS

_CURLY = re.compile("[\u2018\u2019\u201c\u201d\u00a0]")
_DASH = re.compile("^[\u2013\u2014]")  # where an option begins
# Other names may well be meant literally, as in a template.
_NAMES = r"(?:HOME|USER|PWD|SCRATCH|WORK|TMPDIR|PATH|LD_LIBRARY_PATH|PYTHONPATH|SLURM_[A-Z_]+)"
_VARIABLE = re.compile(rf"\$(?:{_NAMES}\b|\{{{_NAMES}\}})")
_HOME = re.compile("~(?=/)")
_SHELL = re.compile("(?:.*/)?(?:ba|da|z|k)?sh")
_ASSIGNED = re.compile(r"\b([A-Za-z_][A-Za-z0-9_]*)=[\"']?([^\s\"']+)")
_EXIT = re.compile(r"(?:^|[;{]|&&)\s*exit\b")  # `a || exit 1` may be meant
_TRAP_AT_EXIT = re.compile(r"\btrap\b.*\bEXIT\b")
_CONDA_HOOK = re.compile(r"\bhook\b|conda\.sh|/activate\b|bashrc|bash_profile")
_RUNS_TEXT = re.compile("-[a-z]*c")  # bash -c '…'


def doubts(job: Job, node_is_hidden: bool = False, not_used: Container[str] = ()) -> Iterator[str]:
    """Yield what looks odd, each with what to do.

    node_is_hidden: what the processes write outside of mounts ends with their container.
    not_used: keys that the target does without, and says so itself.
    """
    yield from _typed_in_a_word_processor(job)
    yield from _written_for_a_shell(job)
    yield from _in_setup(job.setup)
    if "CUDA_VISIBLE_DEVICES" in job.env:
        yield "env.CUDA_VISIBLE_DEVICES overrides the GPUs that the job gets from the cluster; leave it out"
    if "image" not in not_used and job.image is not None and job.image.startswith("registry.example"):
        yield f'image "{job.image}" is a placeholder; write the name of your image'
    first = job.command[0] if job.command else "x.py"
    if first != "-m" and not first.endswith(".py") and not job.no_python:
        yield f'command begins with "{first}", not a .py file; torchrun starts it with Python unless no_python is true'
    is_here = first != "-m" and not posixpath.isabs(first) and job.workdir is None and not job.setup
    if job.command and is_here and posixpath.normpath(first) not in files.listed(job):
        if job.files:
            yield f"files does not list {first}, the script in command; Kubernetes and compose would not find it"
        elif node_is_hidden and Path(first).is_file():
            yield f"{first} does not travel with the job: the image or a mount has it, or pods need files: [{first}]"
    if job.max_restarts and job.train and job.train.checkpoint_dir is None and not job.train.evaluate_only:
        yield "train.checkpoint_dir is not given, so each restart loses all steps; give it, and resume: auto"
    elif job.max_restarts and job.train and job.train.resume == "never":
        yield "train.resume is never, so a restart finds checkpoints and refuses to run; write resume: auto"
    if "preemption" in job.model_fields_set and job.preemption is None and "preemption" not in not_used:
        yield "preemption is empty, as if it were not there; preemption: {} takes the defaults"
    if job.preemption and job.command and not job.preemption.progress and "preemption" not in not_used:
        yield (
            "preemption is given, so command must save on SIGTERM and resume by itself. In Lightning: "
            'fit(ckpt_path="last"); in Transformers: train(resume_from_checkpoint=True); in Accelerate: load_state(). '
            "preemption.progress names its checkpoints: Slurm then requeues no job that makes no progress"
        )
    if node_is_hidden:
        yield from _lost_with_the_container(job)
    for name, value in job.env.items():
        if value and names_secret(name):
            yield f"env.{name} looks like a secret, and its value is in the output; secrets: [{name}] keeps it out"
    for option in job.slurm.options:
        if option not in OPTIONS and not option.startswith(PYXIS):
            hint = f"; did you mean {instead}?" if (instead := meant(option)) else ""
            yield f"slurm.options: sbatch has no option {option}, unless a plugin adds it{hint}"


def without_mounts(job: Job, **more: str) -> Iterator[str]:
    """Yield the mounts that values of the spec name, for a target without containers; `more` are further values."""
    words = [("workdir", job.workdir or ""), *more.items()]
    words += [(f"train.{key}", getattr(job.train, key, None) or "") for key in PATHS]
    keys: dict[str, list[str]] = {normal(mount.path): [] for mount in job.mounts}
    for key, text in [*words, *_texts(job)]:
        below = (path for path in keys if re.search(rf"(?:^|[=:,\s\"';(]){re.escape(path)}(?:$|[/:,\s\"';)])", text))
        if path := max(below, key=len, default=""):
            keys[path].append(key)
    for mount in job.mounts:
        path = normal(mount.path)
        if keys[path] and normal(mount.folder or "") != path:
            yield f"Not used here: the mount at {path}; every node must have this folder, for {', '.join(keys[path])}."


def _in_setup(lines: Sequence[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        for name, value in _ASSIGNED.findall(line):
            if names_secret(name) and not value.startswith("$"):
                yield f"setup[{number}] sets {name}, which looks like a secret; secrets: [{name}] keeps its value out"
        if _EXIT.search(line):
            yield f"setup[{number}] contains exit, which ends the job before its processes start; leave it out"
        if _TRAP_AT_EXIT.search(line):
            yield f"setup[{number}] sets a trap for EXIT, which never runs: the processes take the place of the shell"
        if "conda activate" in line and not any(_CONDA_HOOK.search(before) for before in lines[: number + 1]):
            hint = 'write eval "$(conda shell.bash hook)" before it'
            yield f"setup[{number}]: conda activate works only in a shell with conda's hook; {hint}"


def _lost_with_the_container(job: Job) -> Iterator[str]:
    kept = [normal(mount.path) for mount in job.mounts if mount.source is not None or mount.claim is not None]
    for key in ("checkpoint_dir", "run_dir", "export"):
        path = getattr(job.train, key, None)
        if path is not None and job.workdir and not path.startswith("~"):
            path = posixpath.join(job.workdir, path)
        if path is not None and not any(PurePosixPath(path).is_relative_to(folder) for folder in kept):
            yield f"train.{key} is {path}, which is lost with the container: mount a source or claim there"


def _texts(job: Job) -> Iterator[tuple[str, str]]:
    yield from ((f"command[{number}]", word) for number, word in enumerate(job.command or ()))
    yield from ((f"setup[{number}]", line) for number, line in enumerate(job.setup))
    yield from ((f"env.{name}", value) for name, value in job.env.items())


def _typed_in_a_word_processor(job: Job) -> Iterator[str]:
    for key, text in _texts(job):
        if found := _CURLY.search(text) or _DASH.search(text):
            char = "U+00A0, a no-break space" if found[0] == "\u00a0" else found[0]
            yield f"{key} contains {char}, which is typographic; write a plain \" or ' or - or space instead"


def _written_for_a_shell(job: Job) -> Iterator[str]:
    """Yield the values that a shell would change: a target quotes each value, so the processes get it as written."""
    for name, value in job.env.items():
        itself = re.compile(rf"\${name}\b|\${{{name}\}}")  # as in PATH: /opt/bin:$PATH
        if found := itself.search(value) or _VARIABLE.search(value) or _HOME.match(value):
            yield f"env.{name} contains {found[0]}, which no shell replaces; write export {name}=… in setup"
    words = list(job.command or ())
    shell = next((number for number, word in enumerate(words) if _SHELL.fullmatch(word)), len(words))
    swept = [key for key in job.sweep if key.startswith("args.")]
    if swept and any(map(_RUNS_TEXT.fullmatch, words[shell:][-len(swept) - 2 : -len(swept) - 1])):
        yield f"sweep: the shell takes {swept[0]} as $0, its own name; write env.NAME instead"
    if not any(_RUNS_TEXT.fullmatch(word) for word in words[shell:]):
        for number, word in enumerate(words):
            if found := _VARIABLE.search(word) or _HOME.match(word):
                replaced = "which no shell replaces; write the value, or let the program replace it"
                yield f"command[{number}] contains {found[0]}, {replaced}"
    for key in PATHS:
        if found := _VARIABLE.search(getattr(job.train, key, None) or ""):
            yield f"train.{key} contains {found[0]}, which no shell replaces; write the path itself"
