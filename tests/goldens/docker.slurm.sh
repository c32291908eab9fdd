#!/bin/bash
# Rendered by `render.py slurm docker.yaml`; edit the spec, not this file.
# Submit it with sbatch from the folder that is to hold the logs.
#
# One task a node: torchrun, which starts the 4 processes of its node.
#SBATCH --job-name=docker
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=4
#SBATCH --mem=204800M
#SBATCH --time=0-08:00:00
#SBATCH --partition=gpu
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --output=docker-%j.log
#SBATCH --open-mode=append
set -euo pipefail

# Secrets come from the environment of sbatch, which Slurm hands on; here are only their names.
: "${WANDB_API_KEY:?is a secret of this job; export it before sbatch}"

# A script that is submitted from inside another job must not take over how that one was bound, nor the GPUs and the
# memory that it asked for, nor the flags that its torchrun reads from PET_ variables.
unset "${!SLURM_CPU_BIND@}" "${!SLURM_GPU_BIND@}" "${!SLURM_MEM_@}" "${!SLURM_NTASKS_PER_GPU@}" "${!PET_@}"
unset SLURM_NTASKS_PER_TRES SLURM_TRES_PER_TASK SLURM_EXCLUSIVE SLURM_NO_KILL
unset SLURM_GPUS SLURM_GPUS_PER_SOCKET SLURM_GPUS_PER_TASK

restart=${SLURM_RESTART_COUNT:-0}

job=$SLURM_JOB_ID
# Slurm sends USR1 to this script 120 s before it takes the nodes.
requeue() {
  echo "back into the queue" >&2
  exec scontrol requeue "$job"
}
trap requeue USR1  # before the start there is nothing to save

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
set -- --user="$(id -u):$(id -g)" "$@"
set -- --gpus="\"device=${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS:?}}\"" "$@"
exec docker run "$@"
'

log=docker-$SLURM_JOB_ID-r$restart.log
echo "start $restart of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST; the processes write to $log"
# A node that has saved and ended must not end those that still save.
srun \
  --nodes=2 --ntasks=2 --export=ALL --ntasks-per-node=1 --cpus-per-task=32 --kill-on-bad-exit=0 \
  --wait=120 \
  --output="$log" --open-mode=append \
  sh -euc "$task" task \
  --rm --init --network=host --ipc=host --mount=type=bind,source=/shared/data,target=/data,readonly \
  --mount=type=bind,source=/shared/checkpoints/docker,target=/checkpoints --env=WANDB_API_KEY \
  --env=MASTER_ADDR --env=MASTER_PORT --env=PET_NNODES --env=PET_RDZV_ID --env=PET_MASTER_ADDR \
  --env=PET_MASTER_PORT --env=PET_NODE_RANK --env=SLURM_JOB_ID --env=SLURM_NODEID --env=SLURM_PROCID \
  --env=SLURM_LOCALID --cpus=32 --memory=214748364800b --env=USER --entrypoint= \
  registry.example/team/train:1.0 \
  env TORCH_ELASTIC_SHUTDOWN_TIMEOUT=90 PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 \
  OMP_NUM_THREADS=8 PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
  torchrun --nproc-per-node=4 --max-restarts=0 --rdzv-backend=static -m train --device=cuda \
  --model=resnet18 --dataset=fashion_mnist --data-root=/data --epochs=10 --batch-size=256 \
  --optimizer=sgd --lr=0.05 --momentum=0.9 --checkpoint-dir=/checkpoints --checkpoint-every=100 \
  --resume=auto &
step=$!

# Now the processes get a SIGTERM, as torchrun passes on no USR1; through scancel, as srun kills with SIGKILL if it
# gets a SIGTERM itself.
stopping=false
stop() {
  trap "" USR1  # another one changes nothing
  stopping=true
  echo "Slurm takes the nodes; the processes are asked to save and end" >&2
  scancel --signal=TERM "$job" || true
  # A process that hangs must not cost the requeue.
  { sleep 105; kill "$step"; } >/dev/null 2>&1 &
}
trap stop USR1

status=0
wait "$step" || status=$?
if "$stopping"; then
  # It was the signal that ended the first wait.  Processes that end with 0 had made their last step.
  status=0
  wait "$step" || status=$?
  (( status == 0 )) || requeue
elif (( status )); then
  state=$(scontrol show job "$job" || true)
  if [[ $state == *PreemptTime=[0-9]* ]]; then
    requeue  # Slurm sent its own SIGTERM to the processes and no signal here
  elif [[ $state == *JobState=RUNNING*Restarts="$restart "* ]] && grep -q "^stopped by a signal .*; saved" "$log"; then
    requeue  # somebody signalled the processes and not this script; torchrun's own exit code would not tell
  fi
  # To Slurm the step is over when each node has said so.  A node that is lost says nothing: Slurm notices it after its
  # SlurmdTimeout, ends this script and sends the job back into the queue itself.
  trap requeue USR1
  for (( waited = 0; waited < 900; waited += 5 )); do
    squeue --noheader --steps --jobs="$job" --format=%i | grep "[.][0-9]" >/dev/null || break
    (( waited != 30 )) || echo "a node does not answer; waiting for what Slurm makes of it" >&2
    sleep 5
  done
fi
exit "$status"
