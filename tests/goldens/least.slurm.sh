#!/bin/bash
# Rendered by `render-job slurm least.yaml`; edit the spec, not this file.
# Submit it by `sbatch job.slurm.sh`, from the folder that is to hold the logs.
# Once it runs, watch it: tail -F job-JOB-r*.log.  End it: scancel JOB.
# One task per node: torchrun, which starts the 1 process of its node.
#SBATCH --job-name=job
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --no-requeue
#SBATCH --output=job-%j.log
#SBATCH --open-mode=append
set -euo pipefail
: "${SLURM_JOB_ID:?is not set, so this is not a Slurm job: submit this script with sbatch}"
(( ! $# )) || { echo "takes no arguments, so not $*: edit the spec" >&2; exit 1; }
(( SLURM_JOB_NUM_NODES == 1 )) ||
  { echo "rendered for one node, not $SLURM_JOB_NUM_NODES: set nodes in the spec" >&2; exit 1; }

# Unset variables left by an enclosing job: srun, torchrun and torch would read them as their own.
for name in SLURMD_DEBUG "${!SLURM_@}" "${!SRUN_@}" "${!PET_@}"; do
  [[ $name =~ ^SLURM_(CONF|JWT|JOB|ARRAY_|SUBMIT_|CLUSTER_NAME|NODE_ALIASES|TMPDIR) ]] || unset "$name"
done
unset {,LOCAL_,NODE_,GROUP_,ROLE_}RANK {,LOCAL_,GROUP_,ROLE_}WORLD_SIZE ROLE_NAME MASTER_ADDR MASTER_PORT
[[ -z ${TORCHELASTIC_RUN_ID-} ]] || unset "${!TORCHELASTIC_@}" OMP_NUM_THREADS TORCH_NCCL_ASYNC_ERROR_HANDLING
export PATH  # after sbatch --export=NONE, bash has one of its own
# For the ID of an array, scontrol prints many.
record=$(scontrol show job --oneliner "$SLURM_JOB_ID" | grep "^JobId=$SLURM_JOB_ID ")
[[ $record == *" ArrayTaskId="* ]] || unset "${!SLURM_ARRAY_@}"
JOB_NUMBER=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
JOB_RESTART=${record#* Restarts=} JOB_RESTART=${JOB_RESTART%% *}
JOB_LOG=job-$JOB_NUMBER-r$JOB_RESTART.log

preflight() {  # on each node: finds what would otherwise show as a hang, or as an error far from its cause
  failed=0; problem() { echo "preflight: $SLURMD_NODENAME: $1" >&2; failed=1; }
  command -v torchrun >/dev/null || problem "torchrun is not found; activate the environment that has it before sbatch"
  if command -v nvidia-smi >/dev/null; then gpus=$(nvidia-smi -L); else gpus=$(ls /dev/dri/renderD* 2>/dev/null); fi
  gpus=$(awk '/^GPU|renderD/ { n++; whole = 1 } /^ *MIG/ { n += !whole; whole = 0 } END { print n + 0 }' <<< "$gpus")
  (( gpus >= 1 )) ||
    problem "$gpus GPUs for 1 processes;\
 look at the driver, or lower procs_per_node"
  return "$failed"
}
preflight || exit

task() {  # runs on the node, once for its 1 process
  export PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/job-nccl-rank- TORCH_NCCL_DUMP_ON_TIMEOUT=1 \
    TORCH_NCCL_TRACE_BUFFER_SIZE=2000
  exec torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node=1 -- mine.py
}
export -f task  # as a variable, because all users of a node can read the arguments of its processes

echo "start $JOB_RESTART of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST; the processes write to $JOB_LOG"
# If a node fails, srun ends the others: they would only wait for it.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --export=ALL --kill-on-bad-exit=1 --wait=60 \
  --output="$JOB_LOG" --open-mode=append \
  bash -euc "export -fn task; task"
