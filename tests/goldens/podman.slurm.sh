#!/bin/bash
# Rendered by `render-job slurm podman.yaml --set slurm.preflight=false`; edit the spec, not this file.
# Submit it by `sbatch podman.slurm.sh`, from the folder that is to hold the logs.
# Once it runs, watch it: tail -F podman-JOB-r*.log.  End it: scancel JOB.
# One task per process, 4 on each node; Slurm starts them all.
#SBATCH --job-name=podman
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=4
#SBATCH --mem=204800M
#SBATCH --time=0-08:00:00
#SBATCH --partition=gpu
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --output=podman-%j.log
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
JOB_LOG=podman-$JOB_NUMBER-r$JOB_RESTART.log

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

program() {  # runs in the container
  export OMP_NUM_THREADS=8 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/podman-nccl-rank- TORCH_NCCL_DUMP_ON_TIMEOUT=1 \
    TORCH_NCCL_TRACE_BUFFER_SIZE=2000
  exec python3 -m train \
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
JOB_PROGRAM="$(declare -f program); program"
task() {  # runs on the node, once per process
  export RANK=$SLURM_PROCID
  export LOCAL_RANK=$SLURM_LOCALID
  export NODE_RANK=$SLURM_NODEID
  export WORLD_SIZE=$SLURM_NTASKS
  export LOCAL_WORLD_SIZE=4
  set -- --name="slurm-$SLURM_JOB_ID.$SLURM_STEP_ID.$SLURM_PROCID" --replace
  set -- "$@" --label="node=$SLURMD_NODENAME" --label="shell=${asked+$$}"
  if [ "$(id -u)" != 0 ]; then set -- "$@" --userns=keep-id; fi
  for name in JOB_PROGRAM RANK LOCAL_RANK NODE_RANK WORLD_SIZE LOCAL_WORLD_SIZE "${!MASTER_@}" "${!SLURM_@}"; do
    set -- "$@" "--env=$name"
  done
  gpus=${CUDA_VISIBLE_DEVICES:?is not set: Slurm gave this task no GPU}
  [[ $gpus == *-* ]] || gpus=$(nvidia-smi --id="$gpus" --query-gpu=uuid --format=csv,noheader)
  for gpu in ${gpus//,/ }; do set -- "$@" "--device=nvidia.com/gpu=$gpu"; done
  exec podman run "$@" \
    --rm --network=host --ipc=host --mount=type=bind,source=/shared/data,target=/data,readonly \
    --mount=type=bind,source=/shared/checkpoints/podman,target=/checkpoints --init \
    --security-opt=label=disable --entrypoint= registry.example/team/train:1.0 sh -c \
    'eval "$JOB_PROGRAM"'
}
export JOB_PROGRAM; export -f task  # as variables, because all users of a node can read the arguments of its processes

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
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks=$(( SLURM_JOB_NUM_NODES * 4 )) --ntasks-per-node=4 \
  --export=ALL --cpus-per-task=8 --distribution=block --kill-on-bad-exit=0 --wait=120 \
  --output="$JOB_LOG" --open-mode=append \
  bash -uc "export -fn task; $(declare -f attend); attend $JOB_NUMBER" & step=$!

stop() {
  trap "" USR1  # a second signal changes nothing
  echo "Slurm is about to end the job; asking the processes to save and end" >&2
  { sleep 105; kill "$step"; } >/dev/null 2>&1 &  # a process that hangs must not prevent the requeue
  timeout 20 srun --overlap --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --export=ALL --kill-on-bad-exit=0 \
    bash -c '
    podman ps --filter "name=^slurm-$SLURM_JOB_ID[.]" --filter "label=node=$SLURMD_NODENAME" \
      --format "{{.ID}} {{index .Labels \"shell\"}}" | while read -r container shell; do
        [[ -z $shell ]] || kill "$shell"
        podman kill --signal=TERM "$container"
      done' >/dev/null ||
    scancel --signal=TERM "$JOB_NUMBER" || true
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
