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
    runtime: Literal["none", "pyxis", "apptainer", "docker", "podman"] = optional("what runs the image", "none")
    launcher: Literal["torchrun", "srun"] = optional("torchrun: a task per node; srun: a task per process", "torchrun")
    array: Line | None = optional("run the job as an array, such as 0-3 or 0-99%8")
    array_limit: int | None = optional("tasks of the array or sweep that run at once, such as 8", ge=1, le=9999999)
    prologue: list[ShellLine] = optional("lines of bash that the batch script runs once, before the job", [])
    epilogue: list[ShellLine] = optional("lines of bash that the batch script runs at its end, in any case", [])
    options: dict[SlurmOption, OptionValue] = optional("options of sbatch, such as {exclusive: true, nice: 100}", {})
    srun_options: dict[SlurmOption, OptionValue] = optional("options of srun, such as {mpi: pmix, label: true}", {})
