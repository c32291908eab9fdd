"""Rules of Slurm for a job: what its launchers can do, and options that contradict no key and that sbatch takes."""

import math
import re
from collections.abc import Iterable, Iterator

from jobspec.filters import sh
from jobspec.problems import Finding
from jobspec.runtimes import tasks_per_node
from jobspec.spec import shell
from jobspec.spec.job import Job
from jobspec.spec.keys import given
from jobspec.spec.rules import names_in_env
from jobspec.spec.sbatch_options import FLAGS, WITH_VALUE

_MAX_GRACE = 65535  # seconds; sbatch takes no more in --signal

_LONGEST_TASK = 120 * 1024  # bytes; Linux allows 128 KiB in one variable, and the rest of the function needs some

# Variables that the script itself sets.
VARIABLES_OF_SCRIPT = {
    *("JOB_BEFORE", "JOB_LOG", "JOB_NUMBER", "JOB_PROGRAM", "JOB_RESTART", "address", "asked", "before", "disk"),
    *("failed", "free", "gpu", "gpus", "name", "record", "scratch", "shm", "state", "status", "step", "wait_s"),
}

# Options of sbatch that follow from keys of the spec.  If one were given again, one of the two would be lost.
_OPTIONS_OF_KEYS = {
    "job-name": "name",
    "nodes": "nodes",
    "ntasks": "nodes, procs_per_node and slurm.launcher",
    **dict.fromkeys(["ntasks-per-node", "ntasks-per-gpu", "tasks-per-node"], "procs_per_node and slurm.launcher"),
    "cpus-per-task": "resources.cpus",
    "gpus": "nodes and gpus_per_node (or procs_per_node)",
    "gpus-per-node": "gpus_per_node (or procs_per_node)",
    "gpus-per-task": "procs_per_node; this option would hide the other GPUs from each process",
    "tres-per-task": "procs_per_node and resources.cpus; this option would hide the other GPUs from each process",
    "time": "time_limit",
    **dict.fromkeys(["signal", "requeue", "no-requeue", "open-mode"], "preemption"),
    "no-kill": "nodes (if nodes is a range)",
    "distribution": "slurm.launcher",
    **{key: f"slurm.{key}" for key in ("partition", "account", "qos", "constraint", "reservation", "array")},
}
# Options of sbatch that may replace a key of `resources`, and that key; giving both is rejected.
_OPTIONS_INSTEAD_OF_KEYS = {"cpus-per-gpu": "cpus", "mem": "memory", "mem-per-cpu": "memory", "mem-per-gpu": "memory"}
# Options with which sbatch does not run the script at all.
_NO_JOB = {"help", "usage", "version", "test-only", "wrap"}
_MEMORY = {"mem", "mem-per-cpu", "mem-per-gpu"}
_EXCLUSIVE = ("user", "mcs", "topo")

# Options of srun that the script sets itself.
_ALSO_OF_SRUN = "nodes no-kill ntasks ntasks-per-node tasks-per-node gpus gpus-per-node gpus-per-task tres-per-task"
_SRUN_OPTIONS_OF_SCRIPT = {
    **{key: _OPTIONS_OF_KEYS[key] for key in [*_ALSO_OF_SRUN.split(), "cpus-per-task", "open-mode", "distribution"]},
    "export": "env and secrets",
    "jobid": "the ID of the job",
    "kill-on-bad-exit": "nodes and preemption",
    "output": "name; slurm.options.output sets one log for script and processes",
    "wait": "preemption",
}
_SRUN_OPTIONS_FOR_PYXIS = {"container-image": "image", "container-mounts": "mounts", "container-env": "env and secrets"}

_BY_HAND = "remove it here, and write it on the command line of sbatch"
# sbatch hands these on to the steps in SLURM_ variables only, which the script unsets.
OF_SRUN = {
    name: f"leave it out, or slurm: {{srun_options: {{{name}: …}}}}"
    for name in ("acctg-freq", "gpu-bind", "gpu-freq", "mem-bind", "oom-kill-step", "profile", "tres-bind")
}
OF_SRUN["overcommit"] = "slurm: {srun_options: {overcommit: true}}"


_TRAP = re.compile(r"(?:^|[;&|{])\s*trap\b")
_CODE_BEFORE = re.compile(r"[^;&|]*\$\?")  # used before a command of the line itself


def lines_of_the_script_find_what_they_use(job: Job) -> Iterator[Finding]:
    has_traps = job.preemption or job.slurm.epilogue or any(mount.empty for mount in job.mounts)
    for key, lines in {"prologue": job.slurm.prologue, "epilogue": job.slurm.epilogue}.items():
        for number, line in enumerate(lines):
            path, where = ("slurm", key, number), f"slurm.{key}[{number}]"
            for name in shell.unset_in_a_batch_script(line):
                hint = "SLURM_JOB_NUM_NODES, SLURM_JOB_NODELIST and all others with SLURM_JOB_ are there"
                yield Finding(path, f"{where}: {name} is unset here; it may be that of an enclosing job", hint)
            if key == "prologue" and has_traps and _TRAP.search(shell.read_by_the_shell(line)):
                hint = "what runs at the end of the job is slurm.epilogue"
                yield Finding(path, f"{where}: the script sets traps, which would replace this one", hint)
            if key == "epilogue" and _CODE_BEFORE.match(shell.read_by_the_shell(line)):
                hint = "an epilogue runs after a failure, too; what is for a success goes into the program"
                yield Finding(path, f"{where}: $? is not the exit code of the processes here", hint)


def what_only_torchrun_does(job: Job) -> Iterator[Finding]:
    if job.slurm.launcher == "torchrun":
        return
    if job.nodes.elastic:
        message = "slurm.launcher is srun, but only torchrun continues when nodes come and go (nodes is a range)"
        yield Finding(("slurm", "launcher"), message, "launcher: torchrun")
    elif job.rendezvous.backend == "c10d":
        message = "slurm.launcher is srun, but only torchrun has rendezvous.backend c10d"
        yield Finding(("slurm", "launcher"), message, "leave rendezvous.backend out")
    if "max_restarts" in given(job):
        message = f"max_restarts is {job.max_restarts}, but slurm.launcher is srun: nothing restarts processes"
        hint = "write slurm: {launcher: torchrun}; or set preemption, which requeues the whole job"
        yield Finding(("max_restarts",), message, hint)


def values_fit_into_one_variable(job: Job) -> Iterator[Finding]:
    """Limit the program and its variables: they reach the tasks as one variable, so that srun gets no value."""
    swept: list[str] = []
    number = math.prod(map(len, job.sweep.values()))
    for key, values in job.sweep.items():
        swept += [f"--{key}={value}" for value in values] * (number // len(values))
    sizes = {
        "command": _shell_bytes(job.command or ()),
        "setup": _shell_bytes(job.setup),
        # Swept variables count under "sweep", once for each combination.
        "env": _shell_bytes(f"{name}={value}" for name, value in job.env.items() if f"env.{name}" not in job.sweep),
        "sweep": _shell_bytes(swept),
    }
    size = sum(sizes.values())
    if size > _LONGEST_TASK:
        message = f"command, setup, env and sweep take {size} bytes as shell text; at most {_LONGEST_TASK} are allowed"
        largest = max(sizes, key=lambda key: sizes[key])
        yield Finding((largest,), message, "put long values in a file", on_key=True)


def _shell_bytes(words: Iterable[str]) -> int:
    return sum(len(sh(word).encode()) + word.count("$") + 16 for word in words)  # 16: what bash writes around a word


def arrays_are_possible(job: Job) -> Iterator[Finding]:
    if job.sweep and job.slurm.array is not None:
        message = "slurm.array is given, but the sweep already makes an array"
        yield Finding(("slurm", "array"), message, "leave slurm.array out", on_key=True)
    if job.slurm.array_limit is not None and not job.sweep and (job.slurm.array is None or "%" in job.slurm.array):
        other = "slurm.array has a limit, too" if job.slurm.array else "there is neither a sweep nor slurm.array"
        message = f"slurm.array_limit is given, but {other}"
        yield Finding(("slurm", "array_limit"), message, "leave one of them out", on_key=True)
    for first, last in re.findall(r"([0-9]+)-([0-9]+)", job.slurm.array or ""):
        if int(last) < int(first):
            message = f"slurm.array: {first}-{last} counts down; a range must count up"
            yield Finding(("slurm", "array"), message, f"write {last}-{first}")


def each_task_has_a_cpu(job: Job) -> Iterator[Finding]:
    tasks = tasks_per_node(job)
    if job.resources.cpus is not None and job.resources.cpus < tasks:
        message = f"resources.cpus is {job.resources.cpus}, but slurm.launcher srun starts {tasks} tasks on each node"
        yield Finding(("resources", "cpus"), message, f"cpus: {tasks}, or more")


def tasks_of_an_array_keep_apart(job: Job) -> Iterator[Finding]:
    """Check that the tasks of an array, which all have one spec, do not write to the same path."""
    if job.slurm.array is None or job.train is None:
        return
    for key, what in (("checkpoint_dir", "folder"), ("run_dir", "folder"), ("export", "file")):
        if getattr(job.train, key) is not None:
            message = f"train.{key} is one {what}, but slurm.array starts several jobs that would all write to it"
            hint = f"use sweep instead of slurm.array: it gives each run its own values and {what}"
            yield Finding(("train", key), message, hint)


def grace_fits(job: Job) -> Iterator[Finding]:
    grace = job.preemption.grace if job.preemption else 0
    if grace > _MAX_GRACE:
        message = f"preemption.grace is {grace} s; Slurm can signal at most {_MAX_GRACE} s before the end"
        yield Finding(("preemption", "grace"), message)
    elif job.time_limit is not None and grace >= job.time_limit:
        limit = f"time_limit ({job.time_limit} s)"
        message = f"preemption.grace ({grace} s) must be below {limit}: no time is left to train"
        yield Finding(("preemption", "grace"), message)


def variables_are_not_those_of_slurm_or_the_script(job: Job) -> Iterator[Finding]:
    for path, name in names_in_env(job):
        if path[0] == "secrets" and name in VARIABLES_OF_SCRIPT:
            message = f"secrets: the batch script has its own variable {name}, which would replace the secret"
            yield Finding(path, message, "choose another name")
        if name.startswith(("SLURM_", "SLURMD_", "SRUN_", "SBATCH_")):
            message = f"{path[0]}: {name} is Slurm's own variable"
            yield Finding(path, message, "leave it out; set sbatch options in slurm.options", on_key=True)


def instead(name: str) -> str:
    """Return what to do with an option of sbatch that somebody wrote as a key of `slurm`."""
    if name in _OPTIONS_OF_KEYS:
        return f"leave it out: it is set from {_OPTIONS_OF_KEYS[name]}"
    special = {**dict.fromkeys(_NO_JOB, _BY_HAND), **OF_SRUN}
    return special.get(name, f"slurm: {{options: {{{name}: …}}}}")


def options_do_not_contradict_keys(job: Job) -> Iterator[Finding]:
    for name, value in job.slurm.options.items():
        path = ("slurm", "options", name)
        if name in _OPTIONS_OF_KEYS:
            message = f"slurm.options: --{name} is set from {_OPTIONS_OF_KEYS[name]}"
            yield Finding(path, message, "leave it out", on_key=True)
        if name in _NO_JOB:
            yield Finding(path, f"slurm.options: with --{name}, sbatch does not run this script", _BY_HAND, on_key=True)
        if name == "mem" and job.resources.memory is None and str(value) != "0":
            hint = "set resources.memory instead; only mem: 0, for all memory of a node, can stand here"
            yield Finding(path, "slurm.options: mem is set from resources.memory", hint, on_key=True)
        exported = {word.partition("=")[0] for word in str(value).split(",")}
        if name == "export" and "ALL" not in map(str.upper, exported) and not exported.issuperset(job.secrets):
            message = f"slurm.options: export is {value}, so the job would not get its secrets"
            yield Finding(path, message, "leave it out; secrets are passed on by name", on_key=True)
        elif name == "export" and (exposed := [one for one in job.secrets if f",{one}=" in f",{value}"]):
            message = f"slurm.options: export has the value of the secret {exposed[0]}, which would be in the script"
            yield Finding(path, message, "leave it out; secrets are passed on by name", on_key=True)
        key = _OPTIONS_INSTEAD_OF_KEYS.get(name)
        rivals = [f"resources.{key}"] if key and getattr(job.resources, key) is not None else []
        rivals += [one for one in sorted(_MEMORY & job.slurm.options.keys())[:1] if name in _MEMORY and one != name]
        for rival in rivals:
            message = f"slurm.options: {name} is given, and {rival} too; Slurm takes only one of them"
            yield Finding(path, message, "leave one of them out", on_key=True)
        if name in OF_SRUN:
            unset = f"SLURM_{name.replace('-', '_').upper()}"
            message = f"slurm.options: {name} has no effect on the tasks: the script unsets {unset}"
            yield Finding(path, message, OF_SRUN[name], on_key=True)
        elif name == "exclusive" and value is not True and value not in _EXCLUSIVE:
            message = f"slurm.options: exclusive is {value}, which sbatch does not know"
            yield Finding(path, message, "write true, user, mcs or topo; leave it out to share nodes")
        elif name in FLAGS and value is not True:
            message = f"slurm.options: {name} is a flag, so its value must be true, not {value}"
            yield Finding(path, message, "write true, or leave it out")
        elif name in WITH_VALUE and value is True:
            yield Finding(path, f"slurm.options: {name} is true, but sbatch wants a value for it", f"{name}: VALUE")


def srun_options_do_not_contradict_the_script(job: Job) -> Iterator[Finding]:
    decided = _SRUN_OPTIONS_OF_SCRIPT | (_SRUN_OPTIONS_FOR_PYXIS if job.slurm.runtime == "pyxis" else {})
    for name, value in job.slurm.srun_options.items():
        path = ("slurm", "srun_options", name)
        if name in decided:
            yield Finding(path, f"slurm.srun_options: {name} is set from {decided[name]}", "leave it out", on_key=True)
        elif name == "label" and value is not True:
            hint = "write true, or leave it out"
            yield Finding(path, f"slurm.srun_options: label is a flag, so its value must be true, not {value}", hint)
        elif name == "multi-prog":
            message = "slurm.srun_options: multi-prog makes srun read the program as a configuration file"
            yield Finding(path, message, "leave it out", on_key=True)


def each_process_sees_its_gpus(job: Job) -> Iterator[Finding]:
    for section, options in (("options", job.slurm.options), ("srun_options", job.slurm.srun_options)):
        if re.match(r"(.*,)?(gres:|gres/)?gpu(?=[:=,]|$)", str(options.get("gres", ""))):
            message = f"slurm.{section}: the number of GPUs is set from gpus_per_node (or procs_per_node)"
            hint = "to choose the type of GPU, set the key gpu, such as gpu: h100"
            yield Finding(("slurm", section, "gres"), message, hint, on_key=True)
    several = job.slurm.launcher == "torchrun" and job.procs_per_node > 1
    bind = str(job.slurm.srun_options.get("gpu-bind", ""))
    if several and re.match(r"(?i)(verbose,)?(single|map_gpu|per_task:1\b)", bind):
        lost = f"would leave one GPU for the {job.procs_per_node} processes of a task"
        message = f"slurm.srun_options: gpu-bind {bind} {lost}"
        yield Finding(("slurm", "srun_options", "gpu-bind"), message, "leave it out", on_key=True)
