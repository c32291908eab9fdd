#!/bin/bash
# Rendered by `render.py slurm elastic.yaml`; edit the spec, not this file.
# Submit it with sbatch from the folder that is to hold the logs.
# Not used here: image; slurm.runtime is none, so the processes run in the environment of the shell that calls sbatch.
# Not used here: mounts; slurm.runtime is none, so the processes see the paths of the nodes.
#
# One task a node: torchrun, which starts the 2 processes of its node.
#SBATCH --job-name=elastic
#SBATCH --nodes=1-3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --no-kill
#SBATCH --no-requeue
#SBATCH --output=elastic-%j.log
#SBATCH --open-mode=append
set -euo pipefail

# A script that is submitted from inside another job must not take over how that one was bound, nor the GPUs and the
# memory that it asked for, nor the flags that its torchrun reads from PET_ variables.
unset "${!SLURM_CPU_BIND@}" "${!SLURM_GPU_BIND@}" "${!SLURM_MEM_@}" "${!SLURM_NTASKS_PER_GPU@}" "${!PET_@}"
unset SLURM_NTASKS_PER_TRES SLURM_TRES_PER_TASK SLURM_EXCLUSIVE SLURM_NO_KILL
unset "${!SLURM_GPUS@}"

restart=${SLURM_RESTART_COUNT:-0}

# The processes meet on the first node.  Where scontrol fails the job does, too: a guess would split it.
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR=${hosts%%$'\n'*}
# Jobs that share a node get different ports, below those that Linux hands out to clients.
export MASTER_PORT=$(( 20000 + SLURM_JOB_ID % 10000 ))

# torchrun reads a flag from each PET_ variable.
export PET_NNODES=1:$SLURM_JOB_NUM_NODES
export PET_RDZV_ID=$SLURM_JOB_ID.$restart
export PET_RDZV_ENDPOINT=$MASTER_ADDR:$MASTER_PORT

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
exit "$failed"
'
srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --export=ALL --kill-on-bad-exit=0 bash -euc "$preflight"

# What differs from task to task stays in quotes here, until the shell of the task itself reads it.
task='
export PET_LOCAL_ADDR=$SLURMD_NODENAME PET_RDZV_CONF=is_host=0
if [ "$SLURM_NODEID" = 0 ]; then PET_RDZV_CONF=is_host=1; fi
exec "$@"
'

log=elastic-$SLURM_JOB_ID-r$restart.log
echo "start $restart of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST; the processes write to $log"
# The other nodes go on when one is lost.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" \
  --export=ALL --ntasks-per-node=1 --cpus-per-task=2 --no-kill --kill-on-bad-exit=0 --wait=0 \
  --output="$log" --open-mode=append \
  sh -euc "$task" task \
  env OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
  torchrun --nproc-per-node=2 --max-restarts=5 --rdzv-backend=c10d -m train --device=cpu \
  --model=mnist_cnn --dataset=synthetic --epochs=3 --batch-size=96 --optimizer=adam --lr=0.001 \
  --checkpoint-dir=/checkpoints --checkpoint-every=50 --resume=auto
