#!/bin/bash
# Rendered by `render.py slurm mnist.yaml`; edit the spec, not this file.
# Submit it with sbatch from the folder that is to hold the logs.
# Not used here: image; slurm.runtime is none, so the processes run in the environment of the shell that calls sbatch.
#
# One task a node: torchrun, which starts the 2 processes of its node.
#SBATCH --job-name=mnist
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --gpus-per-node=2
#SBATCH --no-requeue
#SBATCH --output=mnist-%j.log
#SBATCH --open-mode=append
set -euo pipefail

# A script that is submitted from inside another job must not take over how that one was bound, nor the GPUs and the
# memory that it asked for, nor the flags that its torchrun reads from PET_ variables.
unset "${!SLURM_CPU_BIND@}" "${!SLURM_GPU_BIND@}" "${!SLURM_MEM_@}" "${!SLURM_NTASKS_PER_GPU@}" "${!PET_@}"
unset SLURM_NTASKS_PER_TRES SLURM_TRES_PER_TASK SLURM_EXCLUSIVE SLURM_NO_KILL
unset SLURM_GPUS SLURM_GPUS_PER_SOCKET SLURM_GPUS_PER_TASK

restart=${SLURM_RESTART_COUNT:-0}

# Run on each node before the start: what would otherwise show as a hang or as an error far from its cause.
preflight='
failed=0
problem() {
  echo "preflight: $SLURMD_NODENAME: $1" >&2
  failed=1
}
if command -v nvidia-smi >/dev/null; then
  gpus=$(nvidia-smi --list-gpus | grep -c "^GPU" || true)
else  # not of NVIDIA
  gpus=$(find /dev/dri -name "renderD*" 2>/dev/null | wc -l)
fi
if [ "$gpus" -lt 2 ]; then
  problem "$gpus GPUs for 2 processes; look at the driver, or lower procs_per_node"
fi
exit "$failed"
'
srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --export=ALL --kill-on-bad-exit=0 bash -euc "$preflight"

# What differs from task to task stays in quotes here, until the shell of the task itself reads it.
task='
exec "$@"
'

log=mnist-$SLURM_JOB_ID-r$restart.log
echo "start $restart of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST; the processes write to $log"
# A node that fails ends the others, which would wait for it.
srun \
  --nodes=1 --ntasks=1 --export=ALL --ntasks-per-node=1 --cpus-per-task=2 --kill-on-bad-exit=1 \
  --wait=60 \
  --output="$log" --open-mode=append \
  sh -euc "$task" task \
  env OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
  torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node=2 --max-restarts=0 -m train \
  --device=cuda --model=mnist_cnn --dataset=mnist --data-root=data --epochs=14 --batch-size=64 \
  --optimizer=adadelta --lr=1.0 --scheduler=step --lr-gamma=0.7
