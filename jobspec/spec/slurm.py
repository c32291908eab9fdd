"""The section `slurm` of a job spec."""

from typing import Literal

from pydantic import Field

from jobspec.spec.fields import OptionValue, ShellLine, SlurmArray, SlurmConstraint, SlurmOption, SlurmWord
from jobspec.spec.value import Section


class Slurm(Section):
    """Keys that only Slurm has."""

    partition: SlurmWord | None = Field(None, description="partition, or several with commas between them")
    account: SlurmWord | None = Field(None, description="account that is charged")
    qos: SlurmWord | None = Field(None, description="quality of service")
    constraint: SlurmConstraint | None = Field(None, description="features that the nodes must have")
    reservation: SlurmWord | None = Field(None, description="reservation to run in")
    runtime: Literal["none", "pyxis", "apptainer", "docker", "podman"] = Field(
        "none", description="what runs the image on a node; none: no container"
    )
    launcher: Literal["torchrun", "srun"] = Field(
        "torchrun", description="torchrun: one task per node, which starts the processes; srun: one task per process"
    )
    array: SlurmArray | None = Field(None, description="run the job as an array, such as 0-3 or 0-99%8")
    array_limit: int | None = Field(
        None, ge=1, le=9999999, description="how many tasks of the array or sweep run at once, at most, such as 8"
    )
    preflight: bool = Field(
        True, description="check names, port, programs, GPUs, shm and memlock on every node before the start"
    )
    prologue: list[ShellLine] = Field(
        [], description="lines of bash that the batch script runs once, on the first node, before the job"
    )
    epilogue: list[ShellLine] = Field(
        [],
        description="lines of bash that the batch script runs once at its end, also after a failure and before a "
        "requeue",
    )
    options: dict[SlurmOption, OptionValue] = Field(
        {}, description="further sbatch options by long name, such as {exclusive: true, nice: 100}"
    )
    srun_options: dict[SlurmOption, OptionValue] = Field(
        {}, description="further srun options, such as {mpi: pmix}; {label: true} begins each line with its rank"
    )
