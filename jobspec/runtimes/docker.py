"""docker: each task runs its container through the node's daemon; and what podman's command line has in common.

The daemon is outside the job: Slurm's limits do not reach the container, so CPUs, memory and GPUs are given here.
Source: docs.docker.com/reference/cli/docker/container/run.
"""

from collections.abc import Sequence

from jobspec.filters import sh
from jobspec.plan import Plan
from jobspec.runtimes import Runtime, tasks_per_node
from jobspec.spec.rules import FILE_OR_URL

# Bash that puts the UUIDs of the task's GPUs into $gpus, separated by commas or line breaks.  Slurm counts from 0 among
# the GPUs that the task may use or among all GPUs of the node, depending on ConstrainDevices in cgroup.conf.
# nvidia-smi counts in the same way, but docker and CDI do not: they are outside the job.  UUIDs mean the same
# everywhere.  Slurm already gives MIG slices by UUID.
GPUS = [
    "gpus=${CUDA_VISIBLE_DEVICES:?is not set: Slurm gave this task no GPU}",
    '[[ $gpus == *-* ]] || gpus=$(nvidia-smi --id="$gpus" --query-gpu=uuid --format=csv,noheader)',
]


class Oci(Runtime):
    starts = True
    mount = ("--mount=type=bind,source=", ",target=", ",readonly")
    wrong_image = FILE_OR_URL

    def run(self, program: str, plan: Plan, own: Sequence[str], passed: Sequence[str]) -> list[str]:
        """Return the words of `program`'s command that both programs have, and its `own` ones."""
        job = plan.job
        rdma = ["--device=/dev/infiniband", "--cap-add=IPC_LOCK", "--ulimit=memlock=-1:-1"]
        return [
            f"{program} run --rm",
            # The host's network, because the nodes know each other by host name.  The host's /dev/shm, because NCCL
            # connects the processes of a node through it, even if they are in different containers.
            *["--network=host", "--ipc=host"],
            *(rdma if job.resources.rdma else []),
            *own,
            *(f"--env={name}" for name in passed),  # by name only: values must not be arguments
            *([f"--workdir={sh(job.workdir)}"] if job.workdir else []),
            *self.mounts(job),
            "--entrypoint=",  # the words after the image are the whole command
            sh(job.image or ""),
        ]


class Docker(Oci):
    def command(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        job = plan.job
        tasks = tasks_per_node(job)
        # --user: files on the mounts then belong to the user who submitted the job.  USER: torch asks for its name,
        # and the container has no user with this number.
        # Ranks of a node share memory through /proc/PID/fd, so their containers must see each other's processes.  The
        # program is then not process 1 and needs no init: only process 1 ignores signals that it does not handle.
        own = ['--name="$name"', '--user="$(id -u):$(id -g)"', "--pid=host" if tasks > 1 else "--init"]
        if job.resources.cpus is not None:
            own.append(f"--cpus={max(1, job.resources.cpus // tasks)}")
        if job.resources.memory is not None:
            memory = f"{job.resources.memory // tasks}b"
            own += [f"--memory={memory}", f"--memory-swap={memory}"]  # docker would add as much swap
        if job.device == "cuda":
            own.append('--gpus="\\"device=${gpus//[[:space:]]/,}\\""')
        return self.run("docker", plan, own, ["USER", *passed])

    def before(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        # Slurm's SIGKILL ends docker's client but not the container.  People, and the next start of a requeued job,
        # find it by its name.
        return [
            "name=slurm-$SLURM_JOB_ID.$SLURM_STEP_ID.$SLURM_PROCID",
            'docker rm --force "$name" >/dev/null 2>&1 || true',
            *self.scratch(plan.job),
            *(GPUS if plan.job.device == "cuda" else []),
        ]
