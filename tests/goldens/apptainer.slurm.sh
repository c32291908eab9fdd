#!/bin/bash
# Rendered by `render-job slurm apptainer.yaml --set preemption=`; edit the spec, not this file.
# Submit it by `sbatch apptainer.slurm.sh`, from the folder that is to hold the log.  End it: scancel JOB.  Why it waits: squeue --start -j JOB
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
set -euo pipefail
: "${SLURM_JOB_ID:?submit this script with sbatch}"
(( $# == 0 )) || { echo "takes no arguments, so not $*: edit the spec" >&2; exit 1; }

job_task() {  # on each node: torchrun starts its 4 processes
  # If the first node's name means this node here, this node would wait for itself forever.
  [[ $SLURM_NODEID == 0 || ! $(getent ahosts "$MASTER_ADDR") =~ ^(127\.|::1) ]] ||
    { echo "$SLURMD_NODENAME: $MASTER_ADDR, the first node, is a loopback address here: see /etc/hosts" >&2; exit 1; }
  gpus=--nv; [[ -e /dev/nvidiactl ]] || gpus=--rocm
  exec apptainer exec --no-eval "$gpus" --bind=/shared/data:/data:ro \
    --bind=/shared/checkpoints/apptainer:/checkpoints docker://registry.example/team/train:1.0 \
    env OMP_NUM_THREADS=8 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/apptainer-nccl-rank- TORCH_NCCL_DUMP_ON_TIMEOUT=1 \
    TORCH_NCCL_TRACE_BUFFER_SIZE=2000 \
    torchrun --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" \
    --master-port="$MASTER_PORT" --nproc-per-node=4 --max-restarts=3 -m train \
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
export -f job_task

# Variables of an enclosing job, which srun and torchrun would read as options.
for name in "${!SLURM_@}" "${!SRUN_@}" "${!PET_@}" "${!TORCHELASTIC_@}"; do
  [[ $name =~ ^SLURM_(CONF|JWT|JOB|ARRAY_|SUBMIT_|CLUSTER_NAME|NODE_ALIASES|TMPDIR) ]] || unset "$name"
done
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export MASTER_ADDR MASTER_PORT=$(( 20000 + SLURM_JOB_ID % 10000 ))

# If a node fails, srun ends the others: they would only wait for it.  Then render-job, if it is installed here, says what failed first.
trap '[[ ! -f /dev/stderr ]] || tail -c 20M /dev/stderr | render-job why - 2>/dev/null || true' ERR
srun --ntasks-per-node=1 --cpus-per-task=32 --kill-on-bad-exit=1 bash -ec job_task
