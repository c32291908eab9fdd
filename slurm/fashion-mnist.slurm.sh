#!/bin/bash
# Rendered by `render.py slurm fashion-mnist.yaml --set nodes=2 --set procs_per_node=4 --set slurm.partition=change-me --set slurm.account=change-me --set train.data_root=/change-me`; edit the spec, not this file.
# Submit it with sbatch from the folder that is to hold the logs.
# Not used here: image; slurm.runtime is none, so the processes run in the environment of the shell that calls sbatch.
#
# One task a node: torchrun, which starts the 4 processes of its node.
#SBATCH --job-name=fashion-mnist
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-node=4
#SBATCH --partition=change-me
#SBATCH --account=change-me
#SBATCH --no-requeue
#SBATCH --output=fashion-mnist-%j.log
#SBATCH --open-mode=append
set -euo pipefail

# A script that is submitted from inside another job must not take over how that one was bound, nor the GPUs and the
# memory that it asked for, nor the flags that its torchrun reads from PET_ variables.
unset "${!SLURM_CPU_BIND@}" "${!SLURM_GPU_BIND@}" "${!SLURM_MEM_@}" "${!SLURM_NTASKS_PER_GPU@}" "${!PET_@}"
unset SLURM_NTASKS_PER_TRES SLURM_TRES_PER_TASK SLURM_EXCLUSIVE SLURM_NO_KILL
unset SLURM_GPUS SLURM_GPUS_PER_SOCKET SLURM_GPUS_PER_TASK

restart=${SLURM_RESTART_COUNT:-0}

# The processes meet on the first node.  Where scontrol fails the job does, too: a guess would split it.
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR=${hosts%%$'\n'*}
# Jobs that share a node get different ports, below those that Linux hands out to clients.
export MASTER_PORT=$(( 20000 + SLURM_JOB_ID % 10000 ))

# torchrun reads a flag from each PET_ variable.
export PET_NNODES=2
export PET_RDZV_ID=$SLURM_JOB_ID.$restart
export PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$MASTER_PORT

# Run on each node before the start: what would otherwise show as a hang or as an error far from its cause.
preflight='
failed=0
problem() {
  echo "preflight: $SLURMD_NODENAME: $1" >&2
  failed=1
}
address=$(getent ahosts "$MASTER_ADDR" | head -n 1 | cut -d " " -f 1)
case $address in
  "") problem "the name of the first node, $MASTER_ADDR, does not resolve; look at DNS or /etc/hosts" ;;
  127.* | ::1) problem "$MASTER_ADDR resolves to $address, which no other node can reach; look at /etc/hosts" ;;
esac
if [ "$SLURM_NODEID" = 0 ]; then
  # In these tables of the kernel: the port in hexadecimal, and 0A for a socket that listens.
  port=$(printf ":%04X" "$MASTER_PORT")
  if cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q "$port [0-9A-F]*:[0-9A-F]* 0A "; then
    problem "port $MASTER_PORT is in use; set another one in rendezvous.port"
  fi
fi
if command -v nvidia-smi >/dev/null; then
  gpus=$(nvidia-smi --list-gpus | grep -c "^GPU" || true)
else  # not of NVIDIA
  gpus=$(find /dev/dri -name "renderD*" 2>/dev/null | wc -l)
fi
if [ "$gpus" -lt 4 ]; then
  problem "$gpus GPUs for 4 processes; look at the driver, or lower procs_per_node"
fi
exit "$failed"
'
srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --export=ALL --kill-on-bad-exit=0 bash -euc "$preflight"

# What differs from task to task stays in quotes here, until the shell of the task itself reads it.
task='
export PET_NODE_RANK=$SLURM_NODEID
exec "$@"
'

log=fashion-mnist-$SLURM_JOB_ID-r$restart.log
echo "start $restart of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST; the processes write to $log"
# A node that fails ends the others, which would wait for it.
srun \
  --nodes=2 --ntasks=2 --export=ALL --ntasks-per-node=1 --cpus-per-task=4 --kill-on-bad-exit=1 \
  --wait=60 \
  --output="$log" --open-mode=append \
  sh -euc "$task" task \
  env OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
  torchrun --nproc-per-node=4 --max-restarts=0 --rdzv-backend=static -m train --device=cuda \
  --model=resnet18 --dataset=fashion_mnist --data-root=/change-me --sync-batchnorm --epochs=3 \
  --batch-size=32 --optimizer=sgd --lr=0.001
