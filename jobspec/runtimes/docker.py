"""docker: each task runs its container through the node's daemon.

The daemon is outside the job: Slurm's limits do not reach the container, so CPUs, memory and GPUs are given here.
Source: docs.docker.com/reference/cli/docker/container/run.
"""

from collections.abc import Sequence

from jobspec.plan import Plan
from jobspec.runtimes import _oci, tasks_per_node


class Docker(_oci.Oci):
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
            _oci.let_in(["USER", *passed]),
            *self.mount_empty(plan.job),
        ]
        if plan.job.device == "cuda":
            lines += [*_oci.GPUS, 'set -- "$@" --gpus="\\"device=${gpus//[[:space:]]/,}\\""']
        return lines


RUNTIME = Docker()
