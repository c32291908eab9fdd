#!/bin/bash
# Rendered by `render-job slurm podman.yaml`; edit the spec, not this file.
# Submit it by `sbatch podman.slurm.sh`, from the folder that is to hold the log.  End it: scancel JOB.  Why it waits: squeue --start -j JOB
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
: "${SLURM_JOB_ID:?submit this script with sbatch}"
(( $# == 0 )) || { echo "takes no arguments, so not $*: edit the spec" >&2; exit 1; }

job_task() {  # on each node, once per process
  # If the first node's name means this node here, this node would wait for itself forever.
  [[ $SLURM_NODEID == 0 || ! $(getent ahosts "$MASTER_ADDR") =~ ^(127\.|::1) ]] ||
    { echo "$SLURMD_NODENAME: $MASTER_ADDR, the first node, is a loopback address here: see /etc/hosts" >&2; exit 1; }
  # Where salloc left a node too few CPUs, Slurm puts its tasks on another one.
  [[ $SLURM_STEP_TASKS_PER_NODE =~ ^4(\(x[0-9]+\))?$ ]] ||
    { echo "$SLURM_STEP_TASKS_PER_NODE tasks on the nodes, not 4 on each: allocate them by --ntasks-per-node=4" >&2; exit 1; }
  gpus=${CUDA_VISIBLE_DEVICES:?is not set: Slurm gave this task no GPU}
  [[ $gpus == *-* ]] || gpus=$(nvidia-smi --id="$gpus" --query-gpu=uuid --format=csv,noheader)
  read -rd "" -a gpus <<< "${gpus//,/ }" || true
  exec podman run --rm --network=host --ipc=host \
    --name="slurm-$SLURM_JOB_ID-$SLURMD_NODENAME-$SLURM_LOCALID" --replace --userns=keep-id --init \
    --security-opt=label=disable "${gpus[@]/#/--device=nvidia.com/gpu=}" --env=SLURM_JOB_ID \
    --env=SLURM_NODEID --env=SLURM_PROCID --env=SLURM_LOCALID --env=MASTER_ADDR --env=MASTER_PORT \
    --mount=type=bind,source=/shared/data,target=/data,readonly \
    --mount=type=bind,source=/shared/checkpoints/podman,target=/checkpoints --entrypoint= \
    registry.example/team/train:1.0 \
    env RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID" NODE_RANK="$SLURM_NODEID" \
    WORLD_SIZE="$SLURM_NTASKS" LOCAL_WORLD_SIZE=4 OMP_NUM_THREADS=8 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 \
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/checkpoints/podman-nccl-rank- \
    TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_NCCL_TRACE_BUFFER_SIZE=2000 \
    python3 -m train \
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

# What Slurm calls this job; of an array, each task has its own name.
until job=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format="%A %i" | sed -n "s/^$SLURM_JOB_ID //p"); do sleep 5; done
# Slurm 24.11 starts a job again that completes after it was preempted: the comment of the job says that it did.
[[ $(squeue --noheader --jobs="$job" --format=%k) != *render-job:completed ]] || { echo "it has completed: to run it again, submit it" >&2; exit 0; }
completed() { scontrol update job="$job" Comment="$(squeue --noheader --jobs="$job" --format=%k | sed "s/^(null)$//") render-job:completed" || true; exit 0; }
step=
# Slurm signals 120 s before it takes the nodes: the processes save and end, then the job is requeued.
requeue() {
  trap "" USR1
  if [[ $step ]]; then
    { sleep 105; kill "$step"; } >/dev/null 2>&1 &  # a process that hangs must not prevent the requeue
    timeout 20 srun --overlap --ntasks-per-node=1 --kill-on-bad-exit=0 bash -c 'podman kill --signal=TERM $(podman ps --quiet --filter "name=^slurm-$SLURM_JOB_ID-$SLURMD_NODENAME-")' >/dev/null || true
    wait "$step" && completed  # they had made their last step
  fi
  (( 10#0$(squeue --noheader --jobs="$job" --Format=RestartCnt) < 20 )) ||
    { echo "not requeued: preemption.max_requeues (20) is reached" >&2; scontrol update job="$job" Requeue=0; exit 1; }  # or Slurm itself would requeue it
  echo "requeueing the job" >&2
  exec scontrol requeue "$job"
}
trap requeue USR1

# Once the task of one node has ended, with success or not, the others have 120 s (preemption.grace).  Then render-job, if it is installed here, says what failed first.
trap '[[ ! -f /dev/stderr ]] || tail -c 20M /dev/stderr | render-job why - 2>/dev/null || true' ERR
srun --ntasks-per-node=4 --cpus-per-task=8 --kill-on-bad-exit=0 --wait=120 bash -ec job_task & step=$!
wait "$step" && completed || code=$?
# Slurm signals the processes itself if it preempts the job.
[[ $(squeue --noheader --jobs="$job" --Format=PreemptTime) != *[0-9]* ]] || requeue
# If a node is lost, its part of the step stays until Slurm notices (SlurmdTimeout); then Slurm requeues the job.
while squeue --noheader --steps --jobs="$job" --format=%i | grep -q "[.][0-9]"; do sleep 5; done
(exit "$code")
