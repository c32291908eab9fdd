"""podman: each task runs its container without a daemon, as the user who submitted the job.

GPUs are named by UUID, as the NVIDIA Container Toolkit describes them (CDI; `nvidia-ctk cdi list` shows the names).
Source: docs.podman.io/en/latest/markdown/podman-run.1.html.
"""

from collections.abc import Sequence

from jobspec.plan import Plan
from jobspec.runtimes.docker import GPUS, Oci, let_in


class Podman(Oci):
    program = "podman"
    run = "podman run"
    # Slurm's signal would reach podman itself, too: rootless podman then ends at once, with 0 (seen with 4.3), while
    # its container still saves.
    # Nodes may share podman's database (in a home directory), so `podman ps` lists the containers of all of them.
    # A shell that attends the task gets its signal first: it would take the end of the container for a failure.
    stop = r"""
    podman ps --filter "name=^slurm-$SLURM_JOB_ID[.]" --filter "label=node=$SLURMD_NODENAME" \
      --format "{{.ID}} {{index .Labels \"shell\"}}" | while read -r container shell; do
        [[ -z $shell ]] || kill "$shell"
        podman kill --signal=TERM "$container"
      done"""

    def words(self, plan: Plan) -> list[str]:
        # SELinux would refuse the mounts, and giving them new labels would lock out other jobs.
        # The init passes on signals.  No --pid=host as with docker: each container has its own user namespace, so the
        # kernel may refuse /proc/PID/fd all the same, and podman without cgroups rejects the flag.
        return self.flags(plan, "--init", "--security-opt=label=disable")

    def before(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        # --userns: files on the mounts then belong to the user who submitted the job.  podman rejects it for root.
        lines = [
            'set -- --name="slurm-$SLURM_JOB_ID.$SLURM_STEP_ID.$SLURM_PROCID" --replace',
            'set -- "$@" --label="node=$SLURMD_NODENAME" --label="shell=${asked+$$}"',
            'if [ "$(id -u)" != 0 ]; then set -- "$@" --userns=keep-id; fi',
            let_in(passed),
            *self.mount_empty(plan.job),
        ]
        if plan.job.device == "cuda":
            lines += [*GPUS, 'for gpu in ${gpus//,/ }; do set -- "$@" "--device=nvidia.com/gpu=$gpu"; done']
        return lines
