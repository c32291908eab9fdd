#!/bin/bash
# Rendered by `render-job slurm apptainer.yaml --set slurm.preflight=false --set preemption=`; edit the spec, not this file.
# Submit it by `sbatch apptainer.slurm.sh`, from the folder that is to hold the logs.
# Once it runs, watch it: tail -F apptainer-JOB-r*.log.  End it: scancel JOB.
# One task per node: torchrun, which starts the 4 processes of its node.
#SBATCH --job-name=apptainer
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=4
#SBATCH --mem=204800M
#SBATCH --time=0-08:00:00
#SBATCH --partition=gpu
#SBATCH --no-requeue
#SBATCH --output=apptainer-%j.log
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
JOB_LOG=apptainer-$JOB_NUMBER-r$JOB_RESTART.log

# Where the processes meet.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export MASTER_ADDR
export MASTER_PORT=$(( 20000 + SLURM_JOB_ID % 10000 ))
export PET_NNODES=$SLURM_JOB_NUM_NODES
export PET_RDZV_ID=$SLURM_JOB_ID.$JOB_RESTART
export PET_MASTER_ADDR=$MASTER_ADDR
export PET_MASTER_PORT=$MASTER_PORT

program() {  # runs in the container
  export OMP_NUM_THREADS=8 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/apptainer-nccl-rank- TORCH_NCCL_DUMP_ON_TIMEOUT=1 \
    TORCH_NCCL_TRACE_BUFFER_SIZE=2000
  exec torchrun --nproc-per-node=4 --max-restarts=3 -m train \
    --device=cuda \
    --model=resnet18 \
    --dataset=fashion_mnist \
    --data-root=/data \
    --epochs=10 \
    --batch-size=256 \
    --optimizer=sgd \
    --lr=0.05 \
    --momentum=0.9 \
    --checkpoint-dir=/checkpoints \
    --checkpoint-every=100 \
    --resume=auto
}
JOB_PROGRAM="$(declare -f program); program"
task() {  # runs on the node, once for its 4 processes
  export PET_NODE_RANK=$SLURM_NODEID
  for name in "${!MASTER_@}" "${!PET_@}" "${!SLURM_@}"; do export "APPTAINERENV_$name=${!name}"; done
  if [ -e /dev/nvidiactl ]; then set -- --nv; else set -- --rocm; fi
  exec apptainer exec --no-eval "$@" \
    --bind=/shared/data:/data:ro --bind=/shared/checkpoints/apptainer:/checkpoints \
    docker://registry.example/team/train:1.0 sh -c 'eval "$JOB_PROGRAM"'
}
export JOB_PROGRAM; export -f task  # as variables, because all users of a node can read the arguments of its processes

echo "start $JOB_RESTART of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST; the processes write to $JOB_LOG"
# If a node fails, srun ends the others: they would only wait for it.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --export=ALL --cpus-per-task=32 --kill-on-bad-exit=1 --wait=60 \
  --output="$JOB_LOG" --open-mode=append \
  bash -euc "export -fn task; task"
