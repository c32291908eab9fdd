"""Rules for `slurm.options` and `slurm.srun_options`: nothing that other keys decide or that sbatch rejects."""

import re
from collections.abc import Iterator

from jobspec.problems import Finding
from jobspec.spec.job import Job
from jobspec.spec.rules import Rule
from jobspec.spec.sbatch_options import FLAGS, WITH_VALUE

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
    **{key: f"slurm.{key}" for key in ("partition", "account", "qos", "constraint", "reservation", "array")},
}
# Options of sbatch that may replace a key of `resources`, and that key; giving both is rejected.
_OPTIONS_INSTEAD_OF_KEYS = {"cpus-per-gpu": "cpus", "mem": "memory", "mem-per-cpu": "memory", "mem-per-gpu": "memory"}
# Options with which sbatch does not run the script at all.
_NO_JOB = {"help", "usage", "version", "test-only", "wrap"}
_MEMORY = {"mem", "mem-per-cpu", "mem-per-gpu"}
_EXCLUSIVE = ("user", "mcs", "topo")

# Options of srun that the script sets itself.
_SRUN_OPTIONS_OF_SCRIPT = {
    **{key: _OPTIONS_OF_KEYS[key] for key in ("nodes", "no-kill", "ntasks", "ntasks-per-node", "tasks-per-node")},
    **{key: _OPTIONS_OF_KEYS[key] for key in ("gpus", "gpus-per-node", "gpus-per-task", "tres-per-task")},
    **{key: _OPTIONS_OF_KEYS[key] for key in ("cpus-per-task", "open-mode")},
    "distribution": "slurm.launcher",
    "export": "env and secrets",
    "jobid": "the ID of the job",
    "kill-on-bad-exit": "nodes and preemption",
    "output": "name; slurm.options.output sets one log for script and processes",
    "wait": "preemption",
}
_SRUN_OPTIONS_FOR_PYXIS = {"container-image": "image", "container-mounts": "mounts", "container-env": "env and secrets"}

_BY_HAND = "remove it here, and write it on the command line of sbatch"
_OF_SRUN = "slurm: {srun_options: {overcommit: true}}"


def instead(name: str) -> str:
    """Return what to do with an option of sbatch that somebody wrote as a key of `slurm`."""
    if name in _OPTIONS_OF_KEYS:
        return f"leave it out: it is set from {_OPTIONS_OF_KEYS[name]}"
    special = {**dict.fromkeys(_NO_JOB, _BY_HAND), "overcommit": _OF_SRUN}
    return special.get(name, f"slurm: {{options: {{{name}: …}}}}")


@Rule
def options_do_not_contradict_keys(job: Job) -> Iterator[Finding]:
    for name, value in job.slurm.options.items():
        path = ("slurm", "options", name)
        if name in _OPTIONS_OF_KEYS:
            message = f"slurm.options: --{name} is set from {_OPTIONS_OF_KEYS[name]}"
            yield Finding(path, message, "leave it out", on_key=True)
        if name in _NO_JOB:
            message = f"slurm.options: with --{name}, sbatch does not run this script"
            yield Finding(path, message, _BY_HAND, on_key=True)
        if name == "mem" and job.resources.memory is None and str(value) != "0":
            message = "slurm.options: mem is set from resources.memory"
            hint = "set resources.memory instead; only mem: 0, for all memory of a node, can stand here"
            yield Finding(path, message, hint, on_key=True)
        if name == "export" and str(value).upper() in ("NONE", "NIL") and job.secrets:
            message = f"slurm.options: export is {value}, so the job would not get its secrets"
            yield Finding(path, message, "leave it out; secrets are passed on by name", on_key=True)
        key = _OPTIONS_INSTEAD_OF_KEYS.get(name)
        rivals = [f"resources.{key}"] if key and getattr(job.resources, key) is not None else []
        rivals += [one for one in sorted(_MEMORY & job.slurm.options.keys())[:1] if name in _MEMORY and one != name]
        for rival in rivals:
            message = f"slurm.options: {name} is given, and {rival} too; Slurm takes only one of them"
            yield Finding(path, message, "leave one of them out", on_key=True)
        if name == "overcommit":
            message = "slurm.options: overcommit has no effect on the tasks: the script unsets SLURM_OVERCOMMIT"
            yield Finding(path, message, _OF_SRUN, on_key=True)
        if name == "exclusive" and value is not True and value not in _EXCLUSIVE:
            message = f"slurm.options: exclusive is {value}, which sbatch does not know"
            yield Finding(path, message, "write true, user, mcs or topo; leave it out to share nodes")
        elif name in FLAGS and value is not True:
            message = f"slurm.options: {name} is a flag, so its value must be true, not {value}"
            yield Finding(path, message, "write true, or leave it out")
        elif name in WITH_VALUE and value is True:
            yield Finding(path, f"slurm.options: {name} is true, but sbatch wants a value for it", f"{name}: VALUE")


@Rule
def srun_options_do_not_contradict_the_script(job: Job) -> Iterator[Finding]:
    decided = _SRUN_OPTIONS_OF_SCRIPT | (_SRUN_OPTIONS_FOR_PYXIS if job.slurm.runtime == "pyxis" else {})
    for name, value in job.slurm.srun_options.items():
        path = ("slurm", "srun_options", name)
        if name in decided:
            message = f"slurm.srun_options: {name} is set from {decided[name]}"
            yield Finding(path, message, "leave it out", on_key=True)
        elif name == "label" and value is not True:
            hint = "write true, or leave it out"
            yield Finding(path, f"slurm.srun_options: label is a flag, so its value must be true, not {value}", hint)
        elif name == "multi-prog":
            message = "slurm.srun_options: multi-prog makes srun read the program as a configuration file"
            yield Finding(path, message, "leave it out", on_key=True)


@Rule
def each_process_sees_its_gpus(job: Job) -> Iterator[Finding]:
    for section, options in (("options", job.slurm.options), ("srun_options", job.slurm.srun_options)):
        gres, bind = str(options.get("gres", "")), str(options.get("gpu-bind", ""))
        if re.match(r"(.*,)?(gres:|gres/)?gpu(?=[:=,]|$)", gres):
            message = f"slurm.{section}: the number of GPUs is set from gpus_per_node (or procs_per_node)"
            hint = "to choose the type of GPU, set the key gpu, such as gpu: h100"
            yield Finding(("slurm", section, "gres"), message, hint, on_key=True)
        several = job.slurm.launcher == "torchrun" and job.procs_per_node > 1
        if several and re.match(r"(?i)(verbose,)?(single|map_gpu|per_task:1\b)", bind):
            lost = f"would leave one GPU for the {job.procs_per_node} processes of a task"
            message = f"slurm.{section}: gpu-bind {bind} {lost}"
            yield Finding(("slurm", section, "gpu-bind"), message, "leave it out", on_key=True)
