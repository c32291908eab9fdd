"""The section `slurm` of a job spec."""

from typing import Literal

from jobspec.spec.fields import Line, OptionValue, ShellLine, SlurmOption
from jobspec.spec.value import Section, optional


class Slurm(Section):
    """Keys that only Slurm has."""

    partition: Line | None = optional("partition, or several with commas between them")
    account: Line | None = optional("account that is charged")
    qos: Line | None = optional("quality of service")
    constraint: Line | None = optional("features that the nodes must have")
    reservation: Line | None = optional("reservation to run in")
    runtime: Literal["none", "pyxis", "apptainer", "docker", "podman"] = optional(
        "what runs the image on a node; none: no container", "none"
    )
    launcher: Literal["torchrun", "srun"] = optional(
        "torchrun: one task per node, which starts the processes; srun: one task per process", "torchrun"
    )
    array: Line | None = optional("run the job as an array, such as 0-3 or 0-99%8")
    array_limit: int | None = optional(
        "how many tasks of the array or sweep run at once, at most, such as 8", ge=1, le=9999999
    )
    prologue: list[ShellLine] = optional(
        "lines of bash that the batch script runs once, on the first node, before the job", []
    )
    epilogue: list[ShellLine] = optional(
        "lines of bash that the batch script runs once at its end, also after a failure and before a requeue", []
    )
    options: dict[SlurmOption, OptionValue] = optional(
        "further sbatch options by long name, such as {exclusive: true, nice: 100}", {}
    )
    srun_options: dict[SlurmOption, OptionValue] = optional(
        "further srun options, such as {mpi: pmix}; {label: true} begins each line with its rank", {}
    )
