"""apptainer: a container from a registry or from a .sif file, started by each task.

The container gets the host's environment, with CUDA_VISIBLE_DEVICES, which --cleanenv would drop.
Source: apptainer.org/docs/user/main, "Environment and Metadata" and "GPU Support".
"""

from collections.abc import Sequence

from jobspec.filters import sh
from jobspec.plan import Plan
from jobspec.runtimes import Runtime, is_file


class Apptainer(Runtime):
    starts = True
    wrong_image = (r"(?![/.]).*:[^/@]*@sha.*", "apptainer takes a tag or a digest, not both")  # containers/image#1736
    mount = ("--bind=", ":", ":ro")

    def command(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        job, image = plan.job, plan.job.image or ""
        named = is_file(image) or "://" in image or image.endswith(".sif")
        return [
            "apptainer exec --no-eval",  # since 1.1; without it, $(id) in an APPTAINERENV_ value would be run
            *(['"$gpus"'] if job.device == "cuda" else []),
            *([f"--pwd={sh(job.workdir)}"] if job.workdir else []),
            *self.mounts(job),
            sh(image if named else f"docker://{image}"),
        ]

    def before(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        lines = self.scratch(plan.job)
        if plan.job.device == "cuda":
            lines.append("gpus=--nv; [[ -e /dev/nvidiactl ]] || gpus=--rocm")
        # If the image sets a variable too, the image's value wins unless the variable has this prefix.
        names = [name for name in passed if not name.startswith(("SLURM_", "MASTER_"))]
        lines += [f'export APPTAINERENV_{name}="${name}"' for name in names]
        return lines
