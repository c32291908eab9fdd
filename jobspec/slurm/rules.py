"""Rules of Slurm for a job: what its launchers can do, and which options would undo a key without a word.

What sbatch itself refuses at once is left to it.
"""

import re
from collections.abc import Iterator

from jobspec.problems import Finding
from jobspec.runtimes import tasks_per_node
from jobspec.spec import shell
from jobspec.spec.job import Job
from jobspec.spec.keys import given
from jobspec.spec.rules import Rule, names_in_env

# Variables that the script itself sets.
_OF_SPARES = "answers asked bad column deadline enough fit found good hosts line lines lost node program rate wanted"
VARIABLES_OF_SCRIPT = {"checking", "code", "ended", "gpus", "job", "name", "scratch", "step", *_OF_SPARES.split()}

_HIDES_GPUS = "this option may hide GPUs from the processes"

# Options that follow from keys of the spec: given again, one of the two would be lost, or processes would not see their
# GPUs.
_OF_BOTH = {
    **dict.fromkeys(["container", "container-id", "container-image"], "image and slurm.runtime"),
    "container-env": "env and secrets",
    "container-mounts": "mounts",
    "cpus-per-task": "resources.cpus",
    "distribution": "slurm.launcher",
    "gpus": "nodes and gpus_per_node (or procs_per_node)",
    **dict.fromkeys(["gpus-per-node", "gpus-per-socket"], "gpus_per_node (or procs_per_node)"),
    **dict.fromkeys(["gpu-bind", "gpus-per-task", "tres-bind", "tres-per-task"], f"procs_per_node; {_HIDES_GPUS}"),
    "no-kill": "nodes (if nodes is a range)",
    "nodes": "nodes",
    "ntasks": "nodes, procs_per_node and slurm.launcher",
    **dict.fromkeys(["ntasks-per-node", "ntasks-per-gpu", "tasks-per-node"], "procs_per_node and slurm.launcher"),
}
_OF_SBATCH = _OF_BOTH | {
    "job-name": "name",
    **{key: f"slurm.{key}" for key in ("partition", "account", "qos", "constraint", "reservation", "array")},
    **dict.fromkeys(["signal", "requeue", "no-requeue", "open-mode"], "preemption"),
    "time": "time_limit",
}
_OF_TOPOLOGY = ("segment", "switches")
_OF_SRUN = _OF_BOTH | {
    "export": "env and secrets",
    "jobid": "the ID of the job",
    "kill-on-bad-exit": "nodes and preemption",
    "multi-prog": "command or train; with this option srun would read the program as a list of programs",
    "wait": "preemption",
}
# Options of sbatch that may stand in place of a key of `resources`, never beside it.
_INSTEAD_OF_KEYS = {"cpus-per-gpu": "cpus", "mem": "memory", "mem-per-cpu": "memory", "mem-per-gpu": "memory"}

_GPUS = re.compile(r"(.*,)?(gres:|gres/)?gpu(?=[:=,]|$)")
_NUMBER_OF_GPUS = (
    "the number of GPUs is set from gpus_per_node (or procs_per_node)",
    "to choose the type of GPU, set the key gpu, such as gpu: h100",
)

_SLURM_VARIABLE = re.compile(r"\$\{?(SLURM_\w+)")


def lines_of_the_script_find_what_they_use(job: Job) -> Iterator[Finding]:
    for key, lines in {"prologue": job.slurm.prologue, "epilogue": job.slurm.epilogue}.items():
        for number, line in enumerate(lines):
            read = re.sub(r"'[^']*'|(?:^|(?<=\s))#.*", "", line)  # in these a shell replaces nothing
            for name in sorted({*_SLURM_VARIABLE.findall(read)}):
                if re.match(shell.KEPT_BY_A_BATCH_SCRIPT, name) is None and f"{name}=" not in line:
                    message = f"slurm.{key}[{number}]: {name} is unset here; it may be that of an enclosing job"
                    hint = "SLURM_JOB_NUM_NODES, SLURM_JOB_NODELIST and all others with SLURM_JOB_ are there"
                    yield Finding(("slurm", key, number), message, hint)


def prologue_keeps_the_traps(job: Job) -> Iterator[Finding]:
    """Check that no line replaces a trap of the script, or sets one that the script replaces."""
    runs_at_the_end = job.slurm.epilogue or any(mount.empty for mount in job.mounts)
    own = [*(["USR1"] if job.preemption else []), *(["EXIT"] if runs_at_the_end else [])]
    trap = re.compile(rf"(?:^|[;&|({{])\s*trap\s[^;&|]*?\b(?:SIG)?({'|'.join(own)})\b")
    for number, line in enumerate(job.slurm.prologue if own else ()):
        if found := trap.search(re.sub(r"""'[^']*'|"[^"]*\"""", "", line)):
            message = f"slurm.prologue[{number}]: the batch script has its own trap for {found[1]}"
            yield Finding(("slurm", "prologue", number), message, "write what is to run at the end in slurm.epilogue")


def what_only_torchrun_does(job: Job) -> Iterator[Finding]:
    if job.slurm.launcher == "torchrun":
        return
    if job.nodes.elastic or job.rendezvous.backend == "c10d":
        needed = "a range of nodes" if job.nodes.elastic else "rendezvous.backend c10d"
        message = f"slurm.launcher is srun, but only torchrun can do with {needed}"
        yield Finding(("slurm", "launcher"), message, "launcher: torchrun")
    if "max_restarts" in given(job):
        message = f"max_restarts is {job.max_restarts}, but slurm.launcher is srun: nothing restarts processes"
        hint = "write slurm: {launcher: torchrun}; or set preemption, which requeues the whole job"
        yield Finding(("max_restarts",), message, hint)


def arrays_are_possible(job: Job) -> Iterator[Finding]:
    if job.sweep and job.slurm.array is not None:
        message = "slurm.array is given, but the sweep already makes an array"
        yield Finding(("slurm", "array"), message, "leave slurm.array out", on_key=True)
    if job.slurm.array_limit is not None and not job.sweep and job.slurm.array is None:
        message = "slurm.array_limit is given, but there is neither a sweep nor slurm.array"
        yield Finding(("slurm", "array_limit"), message, "leave it out", on_key=True)
    if job.slurm.array_limit is not None and "%" in (job.slurm.array or ""):
        message = f"slurm.array_limit is given, and slurm.array ({job.slurm.array}) has a limit, too"
        yield Finding(("slurm", "array_limit"), message, "leave one out", on_key=True)


def each_task_has_a_cpu(job: Job) -> Iterator[Finding]:
    tasks = tasks_per_node(job)
    if job.resources.cpus is not None and job.resources.cpus < tasks:
        message = f"resources.cpus is {job.resources.cpus}, but slurm.launcher srun starts {tasks} tasks on each node"
        yield Finding(("resources", "cpus"), message, f"cpus: {tasks}, or more")


def tasks_of_an_array_keep_apart(job: Job) -> Iterator[Finding]:
    """Check that the tasks of an array, which all have one spec, do not write to the same path."""
    if job.slurm.array is None or job.train is None:
        return
    for key in ("checkpoint_dir", "run_dir", "export"):
        if getattr(job.train, key) is not None:
            message = f"train.{key} is one path, but slurm.array starts several jobs that would all write to it"
            hint = "use sweep instead of slurm.array: it gives each run its own values and paths"
            yield Finding(("train", key), message, hint)


def topology_is_of_slurm(job: Job) -> Iterator[Finding]:
    for key, word, why in (
        ("required", "block", "--segment needs blocks; for few switches, which Slurm only prefers: preferred: switch"),
        ("preferred", "switch", "Slurm prefers nodes of one switch, for max_switch_wait; for blocks: required: block"),
    ):
        value = getattr(job.topology, key, None)
        if value not in (None, word):
            message = f"topology.{key} is {value}, but Slurm knows only {word}"
            yield Finding(("topology", key), message, why)
    if job.topology and job.topology.required and job.nodes.elastic:
        message = "topology.required is given, but nodes is a range, of which Slurm would take the fewest"
        yield Finding(("topology", "required"), message, "leave one of them out", on_key=True)


def spares_are_possible(job: Job) -> Iterator[Finding]:
    problem = (
        "nodes is a range, which needs none" if job.nodes.elastic else "the job has one node" * (job.nodes.max == 1)
    )
    if job.segment < job.nodes.max:
        problem = "a node that is left out would break a segment of the topology"
    if job.spares and problem:
        yield Finding(("spares",), f"spares is given, but {problem}", "leave spares out", on_key=True)


def grace_fits(job: Job) -> Iterator[Finding]:
    if job.preemption and job.time_limit is not None and job.preemption.grace >= job.time_limit:
        message = f"preemption.grace ({job.preemption.grace} s) must be below time_limit ({job.time_limit} s)"
        yield Finding(("preemption", "grace"), message)


def variables_are_not_those_of_slurm_or_the_script(job: Job) -> Iterator[Finding]:
    for path, name in names_in_env(job):
        in_the_shell = path[0] == "secrets" or f"env.{name}" in job.sweep
        if in_the_shell and name in VARIABLES_OF_SCRIPT:
            message = f"{path[0]}: the batch script has its own variable {name}, which would replace this one"
            yield Finding(path, message, "choose another name", on_key=True)
        if name.startswith(("SLURM_", "SLURMD_", "SRUN_", "SBATCH_")):
            message = f"{path[0]}: {name} is Slurm's own variable"
            yield Finding(path, message, "leave it out; set sbatch options in slurm.options", on_key=True)


def options_do_not_contradict_keys(job: Job) -> Iterator[Finding]:
    for name, value in job.slurm.options.items():
        path, hint = ("slurm", "options", name), "leave it out"
        exported = {word.partition("=")[0] for word in str(value).split(",")}
        key = _INSTEAD_OF_KEYS.get(name)
        if name in _OF_SBATCH:
            message = f"--{name} is set from {_OF_SBATCH[name]}"
        elif name in _OF_TOPOLOGY and job.topology is not None:
            message = f"--{name} is set from topology"
        elif key and getattr(job.resources, key) is not None:
            message = f"{name} is given, and resources.{key} too; Slurm takes only one of them"
        elif name.startswith("container"):
            message = f"{name} would run the batch script itself in a container"
            hint = "write it in slurm.srun_options"
        elif name == "gres" and _GPUS.match(str(value)):
            message, hint = _NUMBER_OF_GPUS
        elif name == "export" and (exposed := [one for one in job.secrets if f",{one}=" in f",{value}"]):
            message = f"export has the value of the secret {exposed[0]}, which would be in the script"
        elif name == "export" and "ALL" not in map(str.upper, exported) and not exported.issuperset(job.secrets):
            message = f"export is {value}, so the job would not get its secrets"
        else:
            continue
        yield Finding(path, f"slurm.options: {message}", hint, on_key=True)


def srun_options_do_not_contradict_the_script(job: Job) -> Iterator[Finding]:
    for name, value in job.slurm.srun_options.items():
        message, hint = f"{name} is set from {_OF_SRUN.get(name)}", "leave it out"
        if name == "gres" and _GPUS.match(str(value)):
            message, hint = _NUMBER_OF_GPUS
        elif name == "gres" and job.device == "cuda":
            message = "with gres, the processes get only what it names, so no GPUs"
            hint = "write it in slurm.options: the processes get all that the job has"
        elif name not in _OF_SRUN:
            continue
        yield Finding(("slurm", "srun_options", name), f"slurm.srun_options: {message}", hint, on_key=True)


RULES: tuple[Rule, ...] = (
    lines_of_the_script_find_what_they_use,
    prologue_keeps_the_traps,
    what_only_torchrun_does,
    arrays_are_possible,
    each_task_has_a_cpu,
    tasks_of_an_array_keep_apart,
    topology_is_of_slurm,
    spares_are_possible,
    grace_fits,
    variables_are_not_those_of_slurm_or_the_script,
    options_do_not_contradict_keys,
    srun_options_do_not_contradict_the_script,
)
