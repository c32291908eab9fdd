#!/bin/bash
# Rendered by `render-job slurm fashion-mnist.yaml --set nodes=2 --set procs_per_node=4 --set slurm.partition=change-me --set slurm.account=change-me --set train.data_root=/change-me -o fashion-mnist.slurm.sh`; edit the spec, not this file.
# Submit it by `sbatch fashion-mnist.slurm.sh`, from the folder that is to hold the log.  End it: scancel JOB.  Why it waits: squeue --start -j JOB
# Not used here: image; slurm.runtime is none, so the processes run in the environment of the shell that calls sbatch.
#SBATCH --job-name=fashion-mnist
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --partition=change-me
#SBATCH --account=change-me
#SBATCH --no-requeue
#SBATCH --output=fashion-mnist-%j.log
set -euo pipefail
: "${SLURM_JOB_ID:?submit this script with sbatch}"
(( $# == 0 )) || { echo "takes no arguments, so not $*: edit the spec" >&2; exit 1; }

job_task() {  # on each node: torchrun starts its 4 processes
  # If the first node's name means this node here, this node would wait for itself forever.
  [[ $SLURM_NODEID == 0 || ! $(getent ahosts "$MASTER_ADDR") =~ ^(127\.|::1) ]] ||
    { echo "$SLURMD_NODENAME: $MASTER_ADDR, the first node, is a loopback address here: see /etc/hosts" >&2; exit 1; }
  export OMP_NUM_THREADS=1 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/fashion-mnist-nccl-rank- TORCH_NCCL_DUMP_ON_TIMEOUT=1 \
    TORCH_NCCL_TRACE_BUFFER_SIZE=2000
  exec torchrun --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" \
    --master-port="$MASTER_PORT" --nproc-per-node=4 -m train \
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
export -f job_task

# Variables of an enclosing job, which srun and torchrun would read as options.
for name in "${!SLURM_@}" "${!SRUN_@}" "${!PET_@}" "${!TORCHELASTIC_@}"; do
  [[ $name =~ ^SLURM_(CONF|JWT|JOB|ARRAY_|SUBMIT_|CLUSTER_NAME|NODE_ALIASES|TMPDIR) ]] || unset "$name"
done
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export MASTER_ADDR MASTER_PORT=$(( 20000 + SLURM_JOB_ID % 10000 ))

# If a node fails, srun ends the others: they would only wait for it.  Then render-job, if it is installed here, says what failed first.
trap '[[ ! -f /dev/stderr ]] || tail -c 20M /dev/stderr | render-job why - 2>/dev/null || true' ERR
srun --ntasks-per-node=1 --kill-on-bad-exit=1 bash -ec job_task
