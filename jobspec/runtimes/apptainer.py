"""apptainer: a container from a registry or from a .sif file, started by each task.

The container gets the host's environment, with CUDA_VISIBLE_DEVICES, which --cleanenv would drop.
Source: apptainer.org/docs/user/main, "Environment and Metadata" and "GPU Support".
"""

from collections.abc import Sequence

from jobspec.plan import Plan
from jobspec.runtimes import Runtime, in_shell, is_file


class Apptainer(Runtime):
    program = "apptainer"
    run = "apptainer exec --no-eval"  # since 1.1; without it, $(id) in an APPTAINERENV_ value would be run
    wrong_image = (r"(?![/.]).*:[^/@]*@sha.*", "apptainer takes a tag or a digest, not both")  # containers/image#1736
    mount = ("--bind=", ":", ":ro")

    def words(self, plan: Plan) -> list[str]:
        image = plan.job.image or ""
        named = is_file(image) or "://" in image or image.endswith(".sif")
        return [*self.mount_flags(plan.job), image if named else f"docker://{image}"]

    def before(self, plan: Plan, passed: Sequence[str]) -> list[str]:
        # If the image sets a variable too, the image's value wins unless the variable has this prefix.
        forced = [f'for name in {in_shell(passed)}; do export "APPTAINERENV_$name=${{!name}}"; done']
        if plan.job.device == "cuda":
            forced.append("if [ -e /dev/nvidiactl ]; then set -- --nv; else set -- --rocm; fi")
        return [*forced, *self.mount_empty(plan.job)]
