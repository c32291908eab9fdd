"""No container: the processes run in the environment of the shell that called sbatch."""

from jobspec.runtimes import Runtime

RUNTIME = Runtime()
