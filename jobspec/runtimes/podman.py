"""podman: each task runs its container without a daemon, as the user who submitted the job.

GPUs are named by UUID, as the NVIDIA Container Toolkit describes them (CDI; `nvidia-ctk cdi list` shows the names).
Source: docs.podman.io/en/latest/markdown/podman-run.1.html.
"""

from collections.abc import Sequence

from jobspec.plan import Plan
from jobspec.runtimes.docker import GPUS, Oci


class Podman(Oci):
    # Slurm's signal would reach podman itself, too: rootless podman then ends at once, with 0 (seen with 4.3), while
    # its container still saves.  Nodes may share podman's database (in a home directory), so names have the node.
    stop = r"""podman kill --signal=TERM $(podman ps --quiet --filter "name=^slurm-$SLURM_JOB_ID-$SLURMD_NODENAME-")"""

    def command(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        own = [
            '--name="slurm-$SLURM_JOB_ID-$SLURMD_NODENAME-$SLURM_LOCALID" --replace',
            "--userns=keep-id",  # files on the mounts then belong to the user who submitted the job
            # The init passes on signals.  No --pid=host as with docker: each container has its own user namespace, so
            # the kernel may refuse /proc/PID/fd all the same, and podman without cgroups rejects the flag.
            # SELinux would refuse the mounts, and giving them new labels would lock out other jobs.
            *["--init", "--security-opt=label=disable"],
            *(['"${gpus[@]/#/--device=nvidia.com/gpu=}"'] if plan.job.device == "cuda" else []),
        ]
        return self.run("podman", plan, own, passed)

    def before(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        gpus = [*GPUS, 'read -rd "" -a gpus <<< "${gpus//,/ }" || true'] if plan.job.device == "cuda" else []
        return [*self.scratch(plan.job), *gpus]
