#!/bin/bash
# Rendered by `render.py slurm job.yaml site.slurm.yaml`; edit the spec, not this file.
# Submit it with sbatch from the folder that is to hold the logs.
# One task per process, 8 on each node; Slurm starts them all.
#SBATCH --job-name=lightning
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --time=0-02:00:00
#SBATCH --signal=B:USR1@90
#SBATCH --requeue
#SBATCH --output=lightning-%j.log
#SBATCH --open-mode=append
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
log=lightning-$job-r$restart.log

requeue() {
  refuse() { echo "not requeued: $1" >&2; exit 1; }
  (( restart < 20 )) || refuse "the limit preemption.max_requeues (20) is reached"
  echo "requeueing the job" >&2; exec scontrol requeue "$job"
}
trap requeue USR1  # Slurm sends USR1 90 s before it takes the nodes; there is nothing to save yet

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export MASTER_ADDR MASTER_PORT=$(( 20000 + SLURM_JOB_ID % 10000 ))  # jobs that share a node get different ports

# slurm.prologue of the spec.
set +u  # the lines may source files that read unset variables
# shellcheck disable=SC2041
for JOB_LINE in \
  'source activate lightning'; do
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
  command -v python3 >/dev/null || problem "python3 is not found; activate the environment that has it before sbatch"
  if command -v nvidia-smi >/dev/null; then gpus=$(nvidia-smi -L); else gpus=$(ls /dev/dri/renderD* 2>/dev/null); fi
  gpus=$(awk '/^GPU|renderD/ { n++; whole = 1 } /^ *MIG/ { n += !whole; whole = 0 } END { print n + 0 }' <<< "$gpus")
  (( gpus >= 8 )) || problem "$gpus GPUs for 8 processes; look at the driver, or lower procs_per_node"
  return "$failed"
}
srun --overlap --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --export=ALL --kill-on-bad-exit=0 \
  bash -c "$(declare -f preflight); preflight"

task() {  # runs on the node, once per process
  export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID NODE_RANK=$SLURM_NODEID WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=8
  export NCCL_DEBUG=INFO OMP_NUM_THREADS=1 PYTHONFAULTHANDLER=1 PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/lightning-nccl-rank- TORCH_NCCL_DUMP_ON_TIMEOUT=1 \
    TORCH_NCCL_TRACE_BUFFER_SIZE=2000
  exec python3 train.py
}
export -f task  # as a variable, because all users of a node can read the arguments of its processes

echo "start $restart of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST; the processes write to $log"
# A node that has saved and ended must not end the nodes that still save.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks=$(( SLURM_JOB_NUM_NODES * 8 )) --ntasks-per-node=8 \
  --export=ALL --distribution=block --kill-on-bad-exit=0 --wait=90 --output="$log" --open-mode=append \
  bash -euc "export -fn task; task" & step=$!

stop() {
  trap "" USR1  # a second signal changes nothing
  echo "Slurm is about to end the job; asking the processes to save and end" >&2
  { sleep 78; kill "$step"; } >/dev/null 2>&1 &  # a process that hangs must not prevent the requeue
  scancel --signal=TERM "$job" || true  # torchrun passes on no USR1, and srun answers a SIGTERM with SIGKILL
  wait "$step" || true
  requeue
}
trap stop USR1
wait "$step" && exit 0 || status=$?

# The processes may have got a SIGTERM, from Slurm or from a user, that did not reach this script.
state=$(scontrol show job "$job" || true)
[[ $state != *PreemptTime=[0-9]* ]] || requeue
# A lost node sends no signal.  After SlurmdTimeout Slurm ends this script and requeues the job.
trap requeue USR1
wait_s=$(scontrol show config | awk '$1 == "SlurmdTimeout" { print $3 + 60 }') || wait_s=360
while (( (wait_s -= 5) > 0 )) && squeue --noheader --steps --jobs="$job" --format=%i | grep "[.][0-9]" >/dev/null; do sleep 5; done
exit "$status"
