#!/bin/bash
# Rendered by `render.py slurm job.yaml site.slurm.yaml`; edit the spec, not this file.
# Submit it with sbatch from the folder that is to hold the logs.
# One task per process, 8 on each node; Slurm starts them all.
#SBATCH --job-name=testopenclip
#SBATCH --nodes=30
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --gpus-per-node=8
#SBATCH --partition=g40423
#SBATCH --no-requeue
#SBATCH --output=testopenclip-%j.log
#SBATCH --open-mode=append
#SBATCH --exclusive
#SBATCH --comment=laion
set -euo pipefail
: "${SLURM_JOB_ID:?is not set, so this is not a Slurm job: submit this script with sbatch}"

# Unset variables left by an enclosing job: srun and torchrun would read them as their options.
for name in SLURMD_DEBUG "${!SLURM_@}" "${!SRUN_@}" "${!PET_@}"; do
  [[ $name =~ ^SLURM_(CONF|JWT|JOB|ARRAY_|SUBMIT_|CLUSTER_NAME|NODE_ALIASES|TMPDIR) ]] || unset "$name"
done
record=$(scontrol show job --oneliner "$SLURM_JOB_ID" | grep "^JobId=$SLURM_JOB_ID ")  # for the ID of an array, scontrol prints many
[[ $record == *" ArrayTaskId="* ]] || unset "${!SLURM_ARRAY_@}"
job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
restart=${record#* Restarts=} restart=${restart%% *}
log=testopenclip-$job-r$restart.log

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export MASTER_ADDR MASTER_PORT=$(( 20000 + SLURM_JOB_ID % 10000 ))  # jobs that share a node get different ports

# slurm.prologue of the spec.
set +u  # the lines may source files that read unset variables
for JOB_LINE in \
  'module load openmpi' \
  'module load cuda/11.7'; do
  eval "$JOB_LINE" || { echo "slurm.prologue: this line failed: $JOB_LINE" >&2; exit 1; }
done
set -u

preflight() {  # on each node: finds what would otherwise show as a hang, or as an error far from its cause
  failed=0; problem() { echo "preflight: $SLURMD_NODENAME: $1" >&2; failed=1; }
  address=$(getent ahosts "$MASTER_ADDR" | awk 'NR == 1 { print $1 }')
  [[ ${address:-127.} != 127.* && $address != ::1 ]] ||
    problem "$MASTER_ADDR, the first node, resolves to ${address:-no address}, so other nodes cannot reach it; look at DNS and /etc/hosts"
  [[ ${SLURM_NODEID:-0} != 0 ]] || ! grep -qs ":$(printf %04X "$MASTER_PORT") [0-9A-F:]* 0A " /proc/net/tcp{,6} ||
    problem "port $MASTER_PORT is in use; set another port in rendezvous.port"
  if command -v nvidia-smi >/dev/null; then gpus=$(nvidia-smi -L); else gpus=$(ls /dev/dri/renderD* 2>/dev/null); fi
  gpus=$(awk '/^GPU|renderD/ { n++; whole = 1 } /^ *MIG/ { n += !whole; whole = 0 } END { print n + 0 }' <<< "$gpus")
  (( gpus >= 8 )) || problem "$gpus GPUs for 8 processes; look at the driver, or lower procs_per_node"
  return "$failed"
}
srun --overlap --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --export=ALL --kill-on-bad-exit=0 \
  bash -c "$(declare -f preflight); preflight"

task() {  # runs on the node, once per process
  export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID NODE_RANK=$SLURM_NODEID WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=8
  export CUDA_LAUNCH_BLOCKING=0 FI_EFA_ENABLE_SHM_TRANSFER=0 FI_EFA_FORK_SAFE=1 FI_EFA_TX_MIN_CREDITS=64 \
    FI_EFA_USE_DEVICE_RDMA=1 FI_LOG_LEVEL=1 FI_PROVIDER=efa NCCL_DEBUG=info NCCL_PROTO=simple NCCL_TREE_THRESHOLD=0 \
    OMPI_MCA_mtl_base_verbose=1 OMP_NUM_THREADS=12 PYTHONFAULTHANDLER=1 PYTHONUNBUFFERED=1 \
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/testopenclip-nccl-rank- \
    TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_NCCL_TRACE_BUFFER_SIZE=2000
  cd /shared/open_clip/src
  set +u  # the lines may source files that read unset variables
  # shellcheck disable=SC2041
  for JOB_LINE in \
    'export PYTHONPATH=${PYTHONPATH:-}:/shared/open_clip/src'; do
    eval "$JOB_LINE" || { echo "setup: this line failed: $JOB_LINE" >&2; exit 1; }
  done
  exec python3 -m open_clip_train.main \
    --save-frequency 1 \
    '--train-data=pipe:aws s3 cp s3://bucket/laion5b/{part-a/{000000..231349}.tar,part-b/{000000..226687}.tar} -' \
    --train-num-samples 135646078 \
    --dataset-type webdataset \
    --dataset-resampled \
    --warmup 2000 \
    --batch-size=375 \
    --epochs=97 \
    --lr 1e-3 \
    --workers=8 \
    --report-to wandb \
    --name test-B-32-laion5b-lr1e-3-bs90k \
    --logs /scratch/logs/ \
    --model ViT-B-32 \
    --seed 0 \
    --ddp-static-graph \
    --local-loss \
    --gather-with-grad \
    --grad-checkpointing \
    --precision amp_bfloat16 \
    --wandb-project-name open_clip6 \
    --resume latest \
    --remote-sync s3://bucket/logs
}
export -f task  # as a variable, because all users of a node can read the arguments of its processes

echo "start $restart of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST; the processes write to $log"
# If a node fails, srun ends the others: they would only wait for it.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks=$(( SLURM_JOB_NUM_NODES * 8 )) --ntasks-per-node=8 \
  --export=ALL --cpus-per-task=12 --distribution=block --kill-on-bad-exit=1 --wait=60 --comment=laion --cpu-bind=v \
  --accel-bind=gn --output="$log" --open-mode=append \
  bash -euc "export -fn task; task"
