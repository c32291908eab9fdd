"""docker: each task runs its container through the node's daemon; and what podman's command line has in common.

The daemon is outside the job: Slurm's limits do not reach the container, so CPUs, memory and GPUs are given here.
Source: docs.docker.com/reference/cli/docker/container/run.
"""

from collections.abc import Sequence

from jobspec.plan import Plan
from jobspec.runtimes import Runtime, in_shell, tasks_per_node
from jobspec.spec.rules import FILE_OR_URL


def let_in(names: Sequence[str]) -> str:
    """Return bash that adds flags for these variables to "$@", by name only: values must not be arguments."""
    return f'for name in JOB_PROGRAM {in_shell(names)}; do\n    set -- "$@" "--env=$name"\n  done'


# Bash that puts the UUIDs of the task's GPUs into $gpus, separated by commas or line breaks.  Slurm counts from 0 among
# the GPUs that the task may use or among all GPUs of the node, depending on ConstrainDevices in cgroup.conf.
# nvidia-smi counts in the same way, but docker and CDI do not: they are outside the job.  UUIDs mean the same
# everywhere.  Slurm already gives MIG slices by UUID.
GPUS = [
    "gpus=${CUDA_VISIBLE_DEVICES:?is not set: Slurm gave this task no GPU}",
    '[[ $gpus == *-* ]] || gpus=$(nvidia-smi --id="$gpus" --query-gpu=uuid --format=csv,noheader)',
]


class Oci(Runtime):
    mount = ("--mount=type=bind,source=", ",target=", ",readonly")
    wrong_image = FILE_OR_URL

    def flags(self, plan: Plan, *own: str) -> list[str]:
        """Return the flags of `run` that are the same on every node, `own` ones too, and the image."""
        # The host's network, because the nodes know each other by host name.  The host's /dev/shm, because NCCL
        # connects the processes of a node through it, even if they are in different containers.
        result = ["--rm", "--network=host", "--ipc=host"]
        if plan.job.resources.rdma:
            result += ["--device=/dev/infiniband", "--cap-add=IPC_LOCK", "--ulimit=memlock=-1:-1"]
        # No entrypoint: the words after the image are the whole command.
        return [*result, *self.mount_flags(plan.job), *own, "--entrypoint=", plan.job.image or ""]


class Docker(Oci):
    program = "docker"
    run = "docker run"

    def words(self, plan: Plan) -> list[str]:
        job = plan.job
        tasks = tasks_per_node(job)
        # Ranks of a node share memory through /proc/PID/fd, so their containers must see each other's processes.  The
        # program is then not process 1 and needs no init: only process 1 ignores signals that it does not handle.
        own = ["--pid=host" if tasks > 1 else "--init"]
        if job.resources.cpus is not None:
            own.append(f"--cpus={max(1, job.resources.cpus // tasks)}")
        if job.resources.memory is not None:
            memory = f"{job.resources.memory // tasks}b"
            own += [f"--memory={memory}", f"--memory-swap={memory}"]  # docker would add as much swap
        return self.flags(plan, *own)

    def before(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        # --user: files on the mounts then belong to the user who submitted the job.  USER: torch asks for its name,
        # and the container has no user with this number.
        # --name: Slurm's SIGKILL ends docker's client but not the container.  People, and the next start of a requeued
        # job, find it by its name.
        lines = [
            "name=slurm-$SLURM_JOB_ID.$SLURM_STEP_ID.$SLURM_PROCID",
            'docker rm --force "$name" >/dev/null 2>&1 || true',
            'set -- --name="$name" --user="$(id -u):$(id -g)"',
            let_in(["USER", *passed]),
            *self.mount_empty(plan.job),
        ]
        if plan.job.device == "cuda":
            lines += [*GPUS, 'set -- "$@" --gpus="\\"device=${gpus//[[:space:]]/,}\\""']
        return lines
