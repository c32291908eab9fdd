#!/bin/bash
# Rendered by `render-job slurm fashion-mnist.yaml --set nodes=2 --set procs_per_node=4 --set slurm.partition=change-me --set slurm.account=change-me --set train.data_root=/change-me -o fashion-mnist.slurm.sh`; edit the spec, not this file.
# Submit it by `sbatch fashion-mnist.slurm.sh`, from the folder that is to hold the logs.
# Once it runs, watch it: tail -F fashion-mnist-JOB-r*.log.  End it: scancel JOB.
# Not used here: image; slurm.runtime is none, so the processes run in the environment of the shell that calls sbatch.
# One task per node: torchrun, which starts the 4 processes of its node.
#SBATCH --job-name=fashion-mnist
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --partition=change-me
#SBATCH --account=change-me
#SBATCH --no-requeue
#SBATCH --output=fashion-mnist-%j.log
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
JOB_LOG=fashion-mnist-$JOB_NUMBER-r$JOB_RESTART.log

# Where the processes meet.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export MASTER_ADDR
export MASTER_PORT=$(( 20000 + SLURM_JOB_ID % 10000 ))
export PET_NNODES=$SLURM_JOB_NUM_NODES
export PET_RDZV_ID=$SLURM_JOB_ID.$JOB_RESTART
export PET_MASTER_ADDR=$MASTER_ADDR
export PET_MASTER_PORT=$MASTER_PORT

preflight() {  # on each node: finds what would otherwise show as a hang, or as an error far from its cause
  failed=0; problem() { echo "preflight: $SLURMD_NODENAME: $1" >&2; failed=1; }
  address=$(getent ahosts "$MASTER_ADDR" | awk 'NR == 1 { print $1 }')
  [[ ${address:-127.} != 127.* && $address != ::1 ]] ||
    problem "$MASTER_ADDR, the first node, resolves to ${address:-no address}, so other nodes cannot reach it;\
 look at DNS and /etc/hosts"
  [[ ${SLURM_NODEID:-0} != 0 ]] || ! grep -qs ":$(printf %04X "$MASTER_PORT") [0-9A-F:]* 0A " /proc/net/tcp{,6} ||
    problem "port $MASTER_PORT is in use; set another port in rendezvous.port"
  command -v torchrun >/dev/null || problem "torchrun is not found; activate the environment that has it before sbatch"
  if command -v nvidia-smi >/dev/null; then gpus=$(nvidia-smi -L); else gpus=$(ls /dev/dri/renderD* 2>/dev/null); fi
  gpus=$(awk '/^GPU|renderD/ { n++; whole = 1 } /^ *MIG/ { n += !whole; whole = 0 } END { print n + 0 }' <<< "$gpus")
  (( gpus >= 4 )) ||
    problem "$gpus GPUs for 4 processes;\
 look at the driver, or lower procs_per_node"
  return "$failed"
}
srun --overlap --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --export=ALL --kill-on-bad-exit=0 \
  bash -c "$(declare -f preflight); preflight"

task() {  # runs on the node, once for its 4 processes
  export PET_NODE_RANK=$SLURM_NODEID
  export OMP_NUM_THREADS=1 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/fashion-mnist-nccl-rank- TORCH_NCCL_DUMP_ON_TIMEOUT=1 \
    TORCH_NCCL_TRACE_BUFFER_SIZE=2000
  exec torchrun --nproc-per-node=4 -m train \
    --device=cuda \
    --model=resnet18 \
    --dataset=fashion_mnist \
    --data-root=/change-me \
    --sync-batchnorm \
    --epochs=3 \
    --batch-size=32 \
    --optimizer=sgd \
    --lr=0.001
}
export -f task  # as a variable, because all users of a node can read the arguments of its processes

echo "start $JOB_RESTART of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST; the processes write to $JOB_LOG"
# If a node fails, srun ends the others: they would only wait for it.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --export=ALL --kill-on-bad-exit=1 --wait=60 \
  --output="$JOB_LOG" --open-mode=append \
  bash -euc "export -fn task; task"
