"""Keys as other tools call them, and the matching keys of a job spec."""

import re
from typing import Any

from jobspec.kubernetes.pod_patch import FREE as KEYS_OF_A_POD
from jobspec.problems import Path
from jobspec.slurm.rules import instead
from jobspec.spec.kubernetes import Kubernetes
from jobspec.spec.sbatch_options import OPTIONS


def _homes(table: dict[str, str]) -> dict[str, Path]:
    """Map each of the words on the left, keys as people write them in snake case, to the path of our key."""
    return {word: tuple(home.split(".")) for words, home in table.items() for word in words.split()}


_EVERYWHERE = _homes(
    {
        "script args arguments argv cmd entrypoint program wrap": "command",
        "container container_image docker_image": "image",
        "environment env_vars variables envs": "env",
        "volumes volume_mounts container_mounts binds": "mounts",
        "num_nodes nnodes replicas num_workers": "nodes",
        "gpus num_gpus nproc_per_node nprocs ntasks ntasks_per_node tasks_per_node num_processes": "procs_per_node",
        "time walltime timeout max_duration": "time_limit",
        "cwd chdir working_dir container_workdir": "workdir",
        "modules commands pre_run": "setup",
        "gpu_type gres": "gpu",
        "job_name job": "name",
        "mem memory_per_node ram": "resources.memory",
        "cpus_per_task cpu num_cpus": "resources.cpus",
        "shm_size shared_memory": "resources.shm",
        "grid matrix hyperparameters": "sweep",
        "requeue preemptible signal": "preemption",
        "restarts retries backoff_limit": "max_restarts",
    }
)
_IN_MOUNT = _homes(
    {
        "pvc claim_name persistent_volume_claim": "claim",
        "mount_path container_path target destination": "path",
        "host_path": "source",
    }
)
_IN_ITS_PLACE = _homes(
    {
        "conda conda_env venv virtualenv": "setup",
        "output log log_file stdout": "slurm.options.output",
        "error stderr": "slurm.options.error",
        "slurm.gres": "slurm.options.gres",
        "slurm.container slurm.container_runtime": "slurm.runtime",
        "slurm.pre slurm.before": "slurm.prologue",
        "slurm.post slurm.after": "slurm.epilogue",
        "train.learning_rate train.rate": "train.lr",
        "train.batch train.global_batch_size train.train_batch_size": "train.batch_size",
        "train.num_epochs train.max_epochs": "train.epochs",
        "train.output_dir train.log_dir train.save_dir": "train.run_dir",
        "kubernetes.image_pull_secret kubernetes.pull_secrets": "kubernetes.image_pull_secrets",
        "kubernetes.local_queue kubernetes.queue_name": "kubernetes.queue",
        "kubernetes.ttl_seconds_after_finished": "kubernetes.ttl",
        "kubernetes.priority": "kubernetes.priority_class",
    }
)


def snake_case(key: str) -> str:
    """Return a key as a spec would write it: nodeSelector and node-selector become node_selector."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower().replace("-", "_")


def own_key_of(path: Path) -> Path | None:
    """Return the path of the spec's own key, if the last part of `path` is another tool's name for it."""
    key, section = snake_case(str(path[-1])), str(path[0])
    if home := _IN_ITS_PLACE.get(f"{section}.{key}" if len(path) > 1 else key):
        return home
    if section == "mounts" and len(path) == 3 and key in _IN_MOUNT:
        return (*path[:-1], *_IN_MOUNT[key])
    home = _EVERYWHERE.get(key) if len(path) <= 2 and section != "train" else None
    return None if home == path[:-1] else home


def value_here(path: Path, value: Any) -> str:
    """Return what to write for a value as other tools write it; empty for any other value."""
    match path, value:
        case ("gpu",), str() if found := re.fullmatch(r"([A-Za-z][\w.-]*):([0-9]+)", value):
            return f"write gpu: {found[1]} and procs_per_node: {found[2]}"
        case ("nodes",), str() if re.fullmatch("[1-9][0-9]*", value):
            return "leave the quotes out"
        case ("procs_per_node",), "auto" | "gpu" | "cpu":
            return "write the number of processes, such as 8, because the artifact must not depend on the machine"
        case ("env",), list():
            pairs = [re.match(r"[{']*([A-Za-z_]\w*)'? *[=:]", str(pair)) for pair in value]
            names = [pair[1] for pair in pairs if pair] or ["NAME"]
            return f"write env: {{{', '.join(f'{name}: …' for name in names)}}}"
        case ("mounts", int()), str() if found := re.fullmatch("(/[^:]*):(/[^:]*)(:ro)?(:rw)?", value):
            read_only = ", read_only: true" if found[3] else ""
            return f"write {{source: {found[1]}, path: {found[2]}{read_only}}}"
    return ""


def advice_for(path: Path) -> str | None:
    """Return what to write for an option of sbatch right below `slurm`, or a key of a pod right below `kubernetes`."""
    if len(path) != 2:
        return None
    key = snake_case(str(path[1]))
    if path[0] == "slurm" and (option := key.replace("_", "-")) in OPTIONS:
        return instead(option)
    if path[0] == "kubernetes" and key not in Kubernetes.model_fields and key in _KEYS_OF_A_POD:
        return f"kubernetes: {{pod: {{{_KEYS_OF_A_POD[key]}: …}}}}"
    return None


_KEYS_OF_A_POD = {snake_case(key): key for key in KEYS_OF_A_POD}
