#!/bin/bash
# Rendered by `render-job slurm elastic.yaml`; edit the spec, not this file.
# Submit it by `sbatch elastic.slurm.sh`, from the folder that is to hold the logs.
# Once it runs, watch it: tail -F elastic-JOB-r*.log.  End it: scancel JOB.
# Not used here: image; slurm.runtime is none, so the processes run in the environment of the shell that calls sbatch.
# Not used here: mounts; slurm.runtime is none, so the processes see the paths of the nodes.
# One task per node: torchrun, which starts the 2 processes of its node.
#SBATCH --job-name=elastic
#SBATCH --nodes=1-3
#SBATCH --no-kill
#SBATCH --no-requeue
#SBATCH --output=elastic-%j.log
#SBATCH --open-mode=append
set -euo pipefail
: "${SLURM_JOB_ID:?is not set, so this is not a Slurm job: submit this script with sbatch}"
(( ! $# )) || { echo "takes no arguments, so not $*: edit the spec" >&2; exit 1; }

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
JOB_LOG=elastic-$JOB_NUMBER-r$JOB_RESTART.log

# Where the processes meet.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export MASTER_ADDR
export MASTER_PORT=$(( 20000 + SLURM_JOB_ID % 10000 ))
export PET_NNODES=1:$SLURM_JOB_NUM_NODES
export PET_RDZV_ID=$SLURM_JOB_ID.$JOB_RESTART
export PET_RDZV_ENDPOINT=$MASTER_ADDR:$MASTER_PORT

preflight() {  # on each node: finds what would otherwise show as a hang, or as an error far from its cause
  failed=0; problem() { echo "preflight: $SLURMD_NODENAME: $1" >&2; failed=1; }
  address=$(getent ahosts "$MASTER_ADDR" | awk 'NR == 1 { print $1 }')
  [[ ${address:-127.} != 127.* && $address != ::1 ]] ||
    problem "$MASTER_ADDR, the first node, resolves to ${address:-no address}, so other nodes cannot reach it;\
 look at DNS and /etc/hosts"
  [[ ${SLURM_NODEID:-0} != 0 ]] || ! grep -qs ":$(printf %04X "$MASTER_PORT") [0-9A-F:]* 0A " /proc/net/tcp{,6} ||
    problem "port $MASTER_PORT is in use; set another port in rendezvous.port"
  command -v torchrun >/dev/null || problem "torchrun is not found; activate the environment that has it before sbatch"
  return "$failed"
}
srun --overlap --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --export=ALL --kill-on-bad-exit=0 \
  bash -c "$(declare -f preflight); preflight"

task() {  # runs on the node, once for its 2 processes
  export PET_RDZV_CONF=is_host=$(( SLURM_NODEID == 0 )),join_timeout=900,read_timeout=900
  export PET_LOCAL_ADDR=$SLURMD_NODENAME
  export OMP_NUM_THREADS=1 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
  exec torchrun --nproc-per-node=2 --max-restarts=5 --rdzv-backend=c10d -m train \
    --device=cpu \
    --model=mnist_cnn \
    --dataset=synthetic \
    --epochs=3 \
    --batch-size=96 \
    --optimizer=adam \
    --lr=0.001 \
    --checkpoint-dir=/checkpoints \
    --checkpoint-every=50 \
    --resume=auto
}
export -f task  # as a variable, because all users of a node can read the arguments of its processes

guard() {  # on each node: --no-kill keeps the allocation also if its first node is lost, and with it this script
  local first nodes names
  while sleep $(( 60 + SLURM_NODEID )); do
    read -r first nodes < <(squeue --noheader --jobs="$1" --states=RUNNING --format="%B %N") || continue
    names=$(scontrol show hostnames "$nodes") && ! grep -qxF "$first" <<< "$names" && break
  done
  echo "cancelling the job: $first, its first node, is lost" >> "$2"
  scancel "$1"
}
srun --overlap --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --export=ALL --kill-on-bad-exit=0 \
  --no-kill --output=/dev/null bash -c "$(declare -f guard); guard \"\$@\"" guard "$JOB_NUMBER" "$(readlink "/proc/$$/fd/1")" &

echo "start $JOB_RESTART of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST; the processes write to $JOB_LOG"
# The other nodes continue when one is lost.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --export=ALL --no-kill --kill-on-bad-exit=0 --wait=0 \
  --output="$JOB_LOG" --open-mode=append \
  bash -euc "export -fn task; task"
