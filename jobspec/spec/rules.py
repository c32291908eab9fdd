"""Rules between the keys of a job spec; those of a target are in its own file."""

import json
import math
import re
from collections.abc import Callable, Iterator

from jobspec.problems import Finding, Path
from jobspec.spec import shell
from jobspec.spec.fields import LINES, LINES_EXPECTED
from jobspec.spec.job import VOLUMES, Job
from jobspec.spec.mounts import normal
from jobspec.spec.variables import SET_BY_LAUNCHER, SET_BY_US, is_bash_variable, is_set_by_launcher

_LONGEST_NAME = 63  # characters of a label of DNS (RFC 1123)
FILE_OR_URL = (r"[/.].*|.*://.*", "write REGISTRY/NAME:TAG, not a file or a URL")

# How no Python script is called: launchers and shells, in any folder, perhaps a whole command line; options.
_NO_SCRIPT = re.compile(
    r"(.*/)?(python[0-9.]*|torchrun|accelerate|deepspeed|mpirun|mpiexec|srun|uv|poetry|pixi|conda|pdm"
    r"|(ba|da|z|k)?sh|[^/ ]*\.sh)( .*)?|-.*"
)

_MASTER = {"MASTER_ADDR", "MASTER_PORT"}

Rule = Callable[[Job], Iterator[Finding]]


def image_runs(
    runner: str, job: Job, wrong: tuple[str, str] = FILE_OR_URL, path: Path = ("image",)
) -> Iterator[Finding]:
    """Yield that there is no image, or one that `runner`, which the key at `path` requests, cannot run: see `wrong`."""
    if job.image is None:
        hint = "image: registry.example/team/train:1.0"
        yield Finding(path, f"image is missing, but {runner} needs one", hint, on_key=path == ("image",))
    elif re.fullmatch(wrong[0], job.image):
        yield Finding(("image",), f'{runner} cannot run image "{job.image}": {wrong[1]}')


def leaves_room(what: str, longest_suffix: Callable[[Job], str], job: Job) -> Iterator[Finding]:
    """Yield that with the suffix that the target adds, the job's name does not fit the DNS label that names `what`."""
    runs = math.prod(map(len, job.sweep.values()))
    suffix = (f"-{runs - 1}" if job.sweep else "") + longest_suffix(job)
    room = _LONGEST_NAME - len(suffix)
    if len(job.name) > room:
        hint = f'the name of {what}, "<name>{suffix}", may have {_LONGEST_NAME}'
        yield Finding(("name",), f"name has {len(job.name)} characters, but may have at most {room}", hint)


def one_program(job: Job) -> Iterator[Finding]:
    if job.train is None and job.command is None:
        message = "neither train nor command is given: what should run?"
        yield Finding(("command",), message, "train: {model: mnist_cnn}, or command: [mine.py]", on_key=True)
    elif job.train is not None and job.command is not None:
        message = "both train and command are given (perhaps by sweep): only one can run"
        yield Finding(("command",), message, "to sweep an argument of command, write args.NAME", on_key=True)
    for key in job.sweep if job.command is None else ():
        if key.startswith("args."):
            message = f"{key} is an argument of a command, but the job has none"
            yield Finding(("sweep", key), message, "sweep train.KEY, or set command", on_key=True)


def command_begins_with_what_runs(job: Job) -> Iterator[Finding]:
    if job.command is None:
        if job.no_python:
            yield Finding(("no_python",), "no_python is true, but there is no command", "leave it out")
    elif not job.no_python and job.command[0] != "-m" and _NO_SCRIPT.fullmatch(job.command[0]):
        message = f"command begins with {job.command[0]}, but torchrun starts Python, which needs a script"
        hint = "begin with a script such as mine.py, or with -m and a module; no_python: true is for other programs"
        yield Finding(("command", 0), message, hint)


def watched_is_a_script(job: Job) -> Iterator[Finding]:
    if job.watch is not None and (job.command is None or job.no_python):
        what = "no_python: true starts another program" if job.no_python else "python -m train reports hangs by itself"
        yield Finding(("watch",), f"watch is given, but {what}", "leave watch out", on_key=True)


def shell_lines_are_whole_commands(job: Job) -> Iterator[Finding]:
    sections = {"setup": job.setup, "slurm.prologue": job.slurm.prologue, "slurm.epilogue": job.slurm.epilogue}
    for key, lines in sections.items():
        for number, line in enumerate(lines):
            if error := shell.syntax_error(line):
                hint = "each line must be a complete command; put longer text into a file, and write: source FILE"
                yield Finding((*key.split("."), number), f"{key}[{number}]: bash cannot read this line: {error}", hint)


def range_is_possible(job: Job) -> Iterator[Finding]:
    if job.nodes.min > job.nodes.max:
        yield Finding(("nodes", "max"), f"nodes.max is {job.nodes.max}, below nodes.min ({job.nodes.min})")
    if job.nodes.elastic and job.rendezvous.backend == "static":
        message = "rendezvous.backend is static, but only c10d can change the number of nodes"
        yield Finding(("rendezvous", "backend"), message, "leave rendezvous.backend out")


def topology_is_possible(job: Job) -> Iterator[Finding]:
    topology, path = job.topology, ("topology", "segment")
    if topology is None:
        return
    if (topology.required is None) == (topology.preferred is None):
        message = "topology needs either required or preferred"
        yield Finding(("topology",), message, "topology: {required: block} on Slurm, or with a node label", on_key=True)
    elif topology.segment and topology.preferred:
        yield Finding(path, "topology.segment needs required: no scheduler only prefers segments", on_key=True)
    if topology.segment and job.nodes.elastic:
        yield Finding(path, "topology.segment is given, but nodes is a range", "leave one of them out", on_key=True)
    elif job.nodes.max % job.segment:
        message = f"topology.segment is {job.segment}, but the {job.nodes.max} nodes are no whole number of segments"
        yield Finding(path, message, "choose a divisor of nodes")


def train_fits_the_job(job: Job) -> Iterator[Finding]:
    train, world = job.train, job.world_size
    if train is None:
        return
    shared = ["batch_size", "logical_world", *(["accumulate"] if train.strategy == "pipeline" else [])]
    for key in shared:  # need not be divisible: train weighs uneven shares exactly
        value = getattr(train, key)
        if value is not None and value < world:
            product = f"{job.nodes.max} nodes x {job.procs_per_node}"
            message = f"train.{key} is {value}, but {world} processes ({product}) share it"
            yield Finding(("train", key), message, f"{key}: {world}, or more")
    if train.device not in ("auto", job.device):
        message = f"train.device is {train.device}, but device is {job.device}"
        yield Finding(("train", "device"), message, "leave train.device out; it follows from device")
    if train.precision == "tf32" and job.device == "cpu":
        yield Finding(("train", "precision"), "train.precision is tf32, but device is cpu", "precision: fp32")
    if train.strategy in ("single", "data_parallel") and world > 1:
        message = f"train.strategy {train.strategy} runs one process, but the job has {world}"
        yield Finding(("train", "strategy"), message, "nodes: 1, procs_per_node: 1; or strategy: custom_ddp")
    for key, text in train:  # no argument can hold a zero byte, and a terminal must not obey what a log shows
        if isinstance(text, str) and not re.fullmatch(LINES, text):
            yield Finding(("train", key), f"train.{key} must be {LINES_EXPECTED}, not {json.dumps(text)}")


def keys_of_gpus_need_gpus(job: Job) -> Iterator[Finding]:
    for key in ("gpu", "gpus_per_node"):
        if getattr(job, key) is not None and job.device == "cpu":
            yield Finding((key,), f"{key} is {getattr(job, key)}, but device is cpu", "leave one of them out")
    if job.gpus_per_node is not None and job.gpus_per_node < job.procs_per_node:
        message = f"gpus_per_node is {job.gpus_per_node}, less than the {job.procs_per_node} processes of a node"
        yield Finding(("gpus_per_node",), message, "leave it out; each process needs a GPU")


def preempted_training_resumes(job: Job) -> Iterator[Finding]:
    train = job.train
    if job.preemption is not None and train and (train.checkpoint_dir is None or train.resume == "never"):
        message = "preemption is given, but train does not resume: a requeued job would start from the beginning"
        yield Finding(("preemption",), message, "train: {checkpoint_dir: /checkpoints, resume: auto}", on_key=True)


def names_in_env(job: Job) -> Iterator[tuple[Path, str]]:
    """Yield the path and name of each variable that the spec sets or requests."""
    yield from ((("env", name), name) for name in job.env)
    yield from ((("secrets", number), name) for number, name in enumerate(job.secrets))


def variables_may_be_set(job: Job) -> Iterator[Finding]:
    for path, name in names_in_env(job):
        section, hint = path[0], "choose another name"
        if is_set_by_launcher(name):
            problem = "is set by the launcher for each process"
            hint = "leave it out; nodes, procs_per_node and rendezvous decide its value"
        elif is_bash_variable(name):
            problem = "must not be set, because bash itself uses this variable"
        elif name in shell.VARIABLES and (job.setup or job.slurm.prologue or job.sweep):
            problem = "is a variable of the shell that runs the lines of setup"
        elif section == "secrets" and name in SET_BY_US:
            problem, hint = "is set for each process", "set it in env; its value need not be secret"
        elif section == "env" and name in job.secrets:
            problem = "is a secret; its value must not be in the spec"
            hint = "leave it out; the value comes from the environment or a Secret of the cluster"
        else:
            continue
        yield Finding(path, f"{section}: {name} {problem}", hint, on_key=True)
    for number, name in enumerate(job.secrets):
        if name in job.secrets[:number]:
            yield Finding(("secrets", number), f"secrets: {name} is given twice", "leave this one out")


def lines_leave_the_ranks_to_the_launcher(job: Job) -> Iterator[Finding]:
    """Yield exports that come too late, or that the launcher replaces.  The batch script obeys those of _MASTER."""
    for key, names, lines in (
        ("setup", SET_BY_LAUNCHER, job.setup),
        ("slurm.prologue", SET_BY_LAUNCHER - (_MASTER if not job.spares else frozenset()), job.slurm.prologue),
    ):
        for number, line in enumerate(lines):
            unquoted = re.sub(r"""'[^']*'|"[^"]*"|(?:^|(?<=\s))#.*""", "", line)
            exported = re.findall(r"\bexport\s+([^;&|]*)", unquoted)
            for name in sorted({*re.findall(r"(?:^|\s)(\w+)=", " ".join(exported))} & names):
                message = f"{key}[{number}] exports {name}, but the launcher sets it for each process"
                hint = "leave it out; rendezvous.port and, on Slurm and over ssh, rendezvous.host say where nodes meet"
                yield Finding((*key.split("."), number), message, hint)


def mounts_have_one_source_and_one_place(job: Job) -> Iterator[Finding]:
    for number, mount in enumerate(job.mounts):
        volumes = [key for key in VOLUMES if getattr(mount, key) is not None]
        if mount.source is None and not volumes:
            message = f"mounts[{number}] does not say what is mounted"
            yield Finding(("mounts", number), message, "source: /data, a folder of the node, or claim: NAME")
        for key in volumes[1:]:
            message = f"mounts[{number}] has both {volumes[0]} and {key}: only one can be mounted"
            yield Finding(("mounts", number, key), message, "leave one of them out; source can be given with either")
        if normal(mount.path) in [normal(earlier.path) for earlier in job.mounts[:number]]:
            message = f"mounts[{number}].path: an earlier mount has the path {normal(mount.path)}, too"
            yield Finding(("mounts", number, "path"), message)


RULES: tuple[Rule, ...] = (
    one_program,
    command_begins_with_what_runs,
    watched_is_a_script,
    shell_lines_are_whole_commands,
    range_is_possible,
    topology_is_possible,
    train_fits_the_job,
    keys_of_gpus_need_gpus,
    preempted_training_resumes,
    variables_may_be_set,
    lines_leave_the_ranks_to_the_launcher,
    mounts_have_one_source_and_one_place,
)
