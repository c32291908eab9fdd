"""Notes about the job at the head of a batch script."""

from collections.abc import Iterator

from jobspec.spec.job import Job


def notes(job: Job) -> Iterator[str]:
    slurm = job.slurm
    if slurm.runtime == "none" and job.image:
        of_shell = "the processes run in the environment of the shell that calls sbatch"
        yield f"Not used here: image; slurm.runtime is none, so {of_shell}."
    if slurm.runtime == "none" and job.mounts:
        yield "Not used here: mounts; slurm.runtime is none, so the processes see the paths of the nodes."
    if job.files:
        inside = "the mounts of the container" if slurm.runtime != "none" else "the folder in which you submit"
        yield f"Not used here: files; the processes see {inside}."
    if job.resources.shm and not slurm.preflight:
        off = "slurm.preflight, which checks its size, is off"
        yield f"Not used here: resources.shm; /dev/shm is the node's, and {off}."
    if slurm.launcher == "srun" and job.rendezvous.timeout and job.train is None:
        decides = "the command itself decides how long it waits for the other nodes"
        yield f"Not used here: rendezvous.timeout; slurm.launcher is srun, so {decides}."
    output = str(job.slurm.options.get("output", ""))
    if "/" in output:
        yield f"Create the folder of {output} first: without it Slurm ends the job and reports no error."
    if job.slurm.launcher == "torchrun":
        processes = f"{job.procs_per_node} process{'es' * (job.procs_per_node > 1)}"
        yield f"One task per node: torchrun, which starts the {processes} of its node."
    else:
        yield f"One task per process, {job.procs_per_node} on each node; Slurm starts them all."
