#!/bin/bash
# Rendered by `render.py slurm array.yaml`; edit the spec, not this file.
# Submit it with sbatch from the folder that is to hold the logs.
# Not used here: image; slurm.runtime is none, so the processes run in the environment of the shell that calls sbatch.
#
# One task a node: torchrun, which starts the 2 processes of its node.
#SBATCH --job-name=array
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=0-00:30:00
#SBATCH --array=0-2%2
#SBATCH --no-requeue
#SBATCH --output=array-%A_%a.log
#SBATCH --open-mode=append
set -euo pipefail

# A script that is submitted from inside another job must not take over how that one was bound, nor the GPUs and the
# memory that it asked for, nor the flags that its torchrun reads from PET_ variables.
unset "${!SLURM_CPU_BIND@}" "${!SLURM_GPU_BIND@}" "${!SLURM_MEM_@}" "${!SLURM_NTASKS_PER_GPU@}" "${!PET_@}"
unset SLURM_NTASKS_PER_TRES SLURM_TRES_PER_TASK SLURM_EXCLUSIVE SLURM_NO_KILL
unset "${!SLURM_GPUS@}"

restart=${SLURM_RESTART_COUNT:-0}

# What differs from task to task stays in quotes here, until the shell of the task itself reads it.
task='
exec "$@"
'

log=array-${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID-r$restart.log
echo "start $restart of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST; the processes write to $log"
# A node that fails ends the others, which would wait for it.
srun \
  --nodes=1 --ntasks=1 --export=ALL --ntasks-per-node=1 --cpus-per-task=2 --kill-on-bad-exit=1 \
  --wait=60 \
  --output="$log" --open-mode=append \
  sh -euc "$task" task \
  env OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
  torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node=2 --max-restarts=0 -m -- \
  jobs.scripts.array_task --lr=0.003,0.001,0.0003 --run-dir=runs/array --model=mnist_cnn \
  --dataset=synthetic --optimizer=adam
