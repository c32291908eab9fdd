#!/bin/bash
# Rendered by `render-job slurm pyxis.yaml --set image=registry.example/change-me:1.0 --set slurm.partition=change-me --set mounts.0.source=/change-me/data --set mounts.1.source=/change-me/checkpoints -o pyxis.slurm.sh`; edit the spec, not this file.
# Submit it by `sbatch pyxis.slurm.sh`, from the folder that is to hold the logs.
# Once it runs, watch it: tail -F pyxis-JOB-r*.log.  End it: scancel JOB.
# One task per node: torchrun, which starts the 4 processes of its node.
#SBATCH --job-name=pyxis
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=4
#SBATCH --mem=204800M
#SBATCH --time=0-08:00:00
#SBATCH --partition=change-me
#SBATCH --constraint="[h100|h200]"
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --output=pyxis-%j.log
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
JOB_LOG=pyxis-$JOB_NUMBER-r$JOB_RESTART.log

# Where the run of a log began or stopped.
mark() { grep -ohsE "resume: .*|stopped by a signal at [^;]*" "$1" | tail -n 1; }
refuse() { echo "not requeued: $1" >&2; exit 1; }
requeue() {
  (( JOB_RESTART < 20 )) ||
    refuse "the limit preemption.max_requeues (20) is reached"
  local before=${JOB_LOG%"$JOB_RESTART.log"}$(( JOB_RESTART - 1 )).log
  [[ ! -f $before || $(mark "$before") != "$(mark "$JOB_LOG")" ]] || refuse "no progress since the last signal"
  trap 'echo "requeueing the job" >&2; exec scontrol requeue "$JOB_NUMBER"' EXIT
  exit
}
# Slurm sends USR1 120 s before it takes the nodes; there is nothing to save yet.
trap requeue USR1

# Where the processes meet.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export MASTER_ADDR
export MASTER_PORT=$(( 20000 + SLURM_JOB_ID % 10000 ))
export PET_NNODES=$SLURM_JOB_NUM_NODES
export PET_RDZV_ID=$SLURM_JOB_ID.$JOB_RESTART
export PET_MASTER_ADDR=$MASTER_ADDR
export PET_MASTER_PORT=$MASTER_PORT

preflight() {  # on each node: finds what would otherwise show as a hang, or as an error far from its cause
  failed=0; problem() { echo "preflight: $SLURMD_NODENAME: $1" >&2; failed=1; }
  address=$(getent ahosts "$MASTER_ADDR" | awk 'NR == 1 { print $1 }')
  [[ ${address:-127.} != 127.* && $address != ::1 ]] ||
    problem "$MASTER_ADDR, the first node, resolves to ${address:-no address}, so other nodes cannot reach it;\
 look at DNS and /etc/hosts"
  [[ ${SLURM_NODEID:-0} != 0 ]] || ! grep -qs ":$(printf %04X "$MASTER_PORT") [0-9A-F:]* 0A " /proc/net/tcp{,6} ||
    problem "port $MASTER_PORT is in use; set another port in rendezvous.port"
  if command -v nvidia-smi >/dev/null; then gpus=$(nvidia-smi -L); else gpus=$(ls /dev/dri/renderD* 2>/dev/null); fi
  gpus=$(awk '/^GPU|renderD/ { n++; whole = 1 } /^ *MIG/ { n += !whole; whole = 0 } END { print n + 0 }' <<< "$gpus")
  (( gpus >= 4 )) ||
    problem "$gpus GPUs for 4 processes;\
 look at the driver, or lower procs_per_node"
  shm=$(df --block-size=1M --output=size /dev/shm | tail -n 1)
  (( shm >= 16384 )) ||
    problem "/dev/shm holds $shm MiB, but resources.shm is 16384 MiB; lower it, or ask the site for more"
  [[ $(ulimit -l) == unlimited ]] ||
    problem "RDMA needs unlimited locked memory, not $(ulimit -l) KiB;\
 see PropagateResourceLimitsExcept in slurm.conf"
  return "$failed"
}
srun --overlap --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --export=ALL --kill-on-bad-exit=0 \
  bash -c "$(declare -f preflight); preflight"

task() {  # runs on the node, once for its 4 processes
  export PET_NODE_RANK=$SLURM_NODEID
  export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=90 PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 \
    OMP_NUM_THREADS=8 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/pyxis-nccl-rank- TORCH_NCCL_DUMP_ON_TIMEOUT=1 \
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
export -f task  # as a variable, because all users of a node can read the arguments of its processes

attend() {  # runs the task; if it fails, it ends the others, which would only wait for it
  trap asked=1 HUP INT QUIT ALRM USR1 USR2 TERM; asked=0  # after a signal, the others may still save
  (set -e; task)
  status=$?
  (( ! status || asked )) || sleep 5  # a signal does not reach all tasks at the same moment
  (( ! status || asked )) || scancel "$1.$SLURM_STEP_ID" 2>/dev/null
  exit "$status"
}

echo "start $JOB_RESTART of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST; the processes write to $JOB_LOG"
# A node that has saved and ended must not end the nodes that still save.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --export=ALL --cpus-per-task=32 --kill-on-bad-exit=0 --wait=120 \
  '--container-image=registry.example#change-me:1.0' \
  --container-mounts=/change-me/data:/data:ro,/change-me/checkpoints:/checkpoints \
  --container-env=SLURM_JOB_ID,SLURM_NODEID,SLURM_PROCID,SLURM_LOCALID,MASTER_ADDR,MASTER_PORT,PET_NNODES,PET_RDZV_ID,PET_MASTER_ADDR,PET_MASTER_PORT,PET_NODE_RANK,SLURM_ARRAY_JOB_ID,SLURM_ARRAY_TASK_ID \
  --output="$JOB_LOG" --open-mode=append \
  bash -uc "export -fn task; $(declare -f attend); attend $JOB_NUMBER" & step=$!

stop() {
  trap "" USR1  # a second signal changes nothing
  echo "Slurm is about to end the job; asking the processes to save and end" >&2
  { sleep 105; kill "$step"; } >/dev/null 2>&1 &  # a process that hangs must not prevent the requeue
  scancel --signal=TERM "$JOB_NUMBER" || true  # torchrun passes on no USR1, and srun answers a SIGTERM with SIGKILL
  if wait "$step"; then exit 0; else requeue; fi  # 0: the processes had made their last step
}
trap stop USR1
wait "$step" && exit 0 || status=$?

# The processes may have got a SIGTERM, from Slurm or from a user, that did not reach this script.
state=$(scontrol show job "$JOB_NUMBER" || true)
[[ $state != *PreemptTime=[0-9]* ]] || requeue
[[ $state != *JobState=RUNNING*Restarts="$JOB_RESTART "* ]] || ! grep -q "stopped by a signal .*; saved" "$JOB_LOG" || requeue
# A lost node sends no signal.  After SlurmdTimeout Slurm ends this script and requeues the job.
trap requeue USR1
wait_s=$(scontrol show config | awk '$1 == "SlurmdTimeout" { print $3 + 60 }') || wait_s=360
steps() { squeue --noheader --steps --jobs="$JOB_NUMBER" --format=%i | grep "[.][0-9]" >/dev/null; }
while (( (wait_s -= 5) > 0 )) && steps; do sleep 5; done
exit "$status"
