"""The options of sbatch by long name: which exist, and which take a value.

Source: `sbatch --help` of Slurm 22.05, and what 25.05 adds.
"""

import difflib

_NAMES_WITH_VALUE = """
    account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container
    container-id core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency
    distribution error exclude export export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node
    gpus-per-socket gpus-per-task gres gres-flags hint input job-name kill-on-invalid-dep licenses mail-type mail-user
    mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks ntasks-per-core
    ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output partition power prefer priority profile qos
    reservation segment signal sockets-per-node switches tasks-per-node thread-spec threads-per-core time time-min tmp
    tres-bind tres-per-task uid wait-all-nodes wckey wrap
"""
_NAMES_OF_FLAGS = """
    consolidate-segments contiguous external help hold ignore-pbs no-requeue oom-kill-step overcommit oversubscribe
    parsable quiet reboot requeue share spread-job spread-segments stepmgr test-only usage use-min-nodes verbose
    version wait
"""
# If these have a value, it follows an equals sign.
_NAMES_WITH_OR_WITHOUT = "exclusive get-user-env nice no-kill propagate resv-ports"

WITH_VALUE = frozenset(_NAMES_WITH_VALUE.split())
FLAGS = frozenset(_NAMES_OF_FLAGS.split())
# All options of sbatch itself; plugins of a cluster may add others.
OPTIONS = WITH_VALUE | FLAGS | frozenset(_NAMES_WITH_OR_WITHOUT.split())
PYXIS = "container-"  # prefix of all options of the plugin pyxis

# Names for these options in older versions, in other commands of Slurm and in torchrun.
_ELSEWHERE = {"workdir": "chdir", "name": "job-name", "nnodes": "nodes", "nproc-per-node": "ntasks-per-node"}


def meant(name: str) -> str | None:
    """Return the option of sbatch that an unknown name resembles; None where a plugin may have added it."""
    near = difflib.get_close_matches(name, sorted(OPTIONS), n=1, cutoff=0.75)
    return _ELSEWHERE.get(name) or next(iter(near), None)
