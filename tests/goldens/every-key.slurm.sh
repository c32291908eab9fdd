#!/bin/bash
# Rendered by `render-job slurm every-key.yaml`; edit the spec, not this file.
# Submit it by `sbatch every-key.slurm.sh`, from the folder that is to hold the log.  End it: scancel JOB.  Why it waits: squeue --start -j JOB
# Not used here: resources.devices; only Kubernetes knows these names; on Slurm use slurm.options, such as {gres: nic:1}.
# Not used here: resources.shm; the processes have the node's /dev/shm.
#SBATCH --job-name=every-key
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=h100:4
#SBATCH --mem=204800M
#SBATCH --time=1-02:30:05
#SBATCH --partition=gpu,long
#SBATCH --account=a
#SBATCH --qos=q
#SBATCH --constraint="[rack1|rack2]"
#SBATCH --reservation=r
#SBATCH --segment=2
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --output=every-key-%j.log
#SBATCH --open-mode=append
#SBATCH --exclusive
#SBATCH --nice=100
#SBATCH --mail-type=END,FAIL
set -euo pipefail
: "${SLURM_JOB_ID:?submit this script with sbatch}"
(( $# == 0 )) || { echo "takes no arguments, so not $*: edit the spec" >&2; exit 1; }
: "${WANDB_API_KEY:?is a secret of this job; export it before sbatch}"
: "${HF_TOKEN:?is a secret of this job; export it before sbatch}"

job_task() {  # on each node: torchrun starts its 4 processes
  # If the first node's name means this node here, this node would wait for itself forever.
  [[ $SLURM_NODEID == 0 || ! $(getent ahosts "$MASTER_ADDR") =~ ^(127\.|::1) ]] ||
    { echo "$SLURMD_NODENAME: $MASTER_ADDR, the first node, is a loopback address here: see /etc/hosts" >&2; exit 1; }
  # Without blocks Slurm ignores --segment, and says nothing.
  [[ $SLURM_TOPOLOGY_ADDR_PATTERN == block* ]] ||
    { echo "$SLURMD_NODENAME: this Slurm has no blocks (topology/block), so --segment had no effect: see topology of the spec" >&2; exit 1; }
  [[ $(ulimit -l) == unlimited ]] ||
    { echo "$SLURMD_NODENAME: RDMA needs unlimited locked memory: see PropagateResourceLimitsExcept in slurm.conf" >&2; exit 1; }
  [[ $(rdma_ports) == *ACTIVE*gids/0* ]] ||
    { echo "$SLURMD_NODENAME: no port in /sys/class/infiniband is active and has a GID" >&2; exit 1; }
  # NCCL would use the ports that are left, at the lowest rate.
  [[ $(rdma_ports) == "$RDMA_PORTS" ]] ||
    { echo "$SLURMD_NODENAME: RDMA ports, < on the first node, > here: $(diff <(echo "$RDMA_PORTS") <(rdma_ports))" >&2; exit 1; }
  export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=90 NCCL_DEBUG=WARN NCCL_NET=IB OMP_NUM_THREADS=8 PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/every-key-nccl-rank- TORCH_NCCL_DUMP_ON_TIMEOUT=1 \
    TORCH_NCCL_TRACE_BUFFER_SIZE=2000
  cd /app
  set +u  # the lines may source files that read unset variables
  for JOB_LINE in \
    'source /opt/venv/bin/activate' \
    'export NCCL_SOCKET_IFNAME=ib0'; do
    eval "$JOB_LINE" || { echo "setup: this line failed: $JOB_LINE" >&2; exit 1; }
  done </dev/null
  exec torchrun --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" \
    --master-port="$MASTER_PORT" --nproc-per-node=4 --max-restarts=3 --rdzv-conf=timeout=3600 -m train \
    --device=cuda \
    --model=resnet18 \
    --dataset=fashion_mnist \
    --batch-size=256 \
    --checkpoint-dir=/checkpoints \
    --resume=auto
}
export -f job_task
rdma_ports() {  # with states and rates, and the GID tables that have a first entry
  cd /sys/class/infiniband 2>/dev/null && grep . */ports/*/{state,rate} && grep -l "[1-9a-f]" */ports/*/gids/0
}
export -f rdma_ports
RDMA_PORTS=$(rdma_ports || true)
export RDMA_PORTS

# Variables of an enclosing job, which srun and torchrun would read as options.
for name in "${!SLURM_@}" "${!SRUN_@}" "${!PET_@}" "${!TORCHELASTIC_@}"; do
  [[ $name =~ ^SLURM_(CONF|JWT|JOB|ARRAY_|SUBMIT_|CLUSTER_NAME|NODE_ALIASES|TMPDIR) ]] || unset "$name"
done
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export MASTER_ADDR MASTER_PORT=29400

# What Slurm calls this job; of an array, each task has its own name.
until job=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format="%A %i" | sed -n "s/^$SLURM_JOB_ID //p"); do sleep 5; done
# Slurm 24.11 starts a job again that completes after it was preempted: the comment of the job says that it did.
[[ $(squeue --noheader --jobs="$job" --format=%k) != *render-job:completed ]] || { echo "it has completed: to run it again, submit it" >&2; exit 0; }
ended=
completed() { ended=yes; exit 0; }
step=
# Slurm signals 120 s before it takes the nodes: the processes save and end, then the job is requeued.
requeue() {
  trap "" USR1
  if [[ $step ]]; then
    scancel --signal=TERM "$job" || true
    wait "$step" && completed  # they had made their last step
    (epilogue) || true
  fi
  (( 10#0$(squeue --noheader --jobs="$job" --Format=RestartCnt) < 5 )) ||
    { echo "not requeued: preemption.max_requeues (5) is reached" >&2; scontrol update job="$job" Requeue=0; exit 1; }  # or Slurm itself would requeue it
  echo "requeueing the job" >&2
  exec scontrol requeue "$job"
}
trap requeue USR1

# slurm.prologue of the spec.
set +u  # the lines may source files that read unset variables
# shellcheck disable=SC2041
for JOB_LINE in \
  'cp -r /shared/data /local'; do
  eval "$JOB_LINE" || { echo "slurm.prologue: this line failed: $JOB_LINE" >&2; exit 1; }
done </dev/null
set -u

epilogue() {
  trap "" USR1  # the job is over
  # slurm.epilogue of the spec.
  set +u  # the lines may source files that read unset variables
  # shellcheck disable=SC2041
  for JOB_LINE in \
    'rm -r /local/data'; do
    eval "$JOB_LINE" || { echo "slurm.epilogue: this line failed: $JOB_LINE" >&2; exit 1; }
  done </dev/null
  [[ ! $ended ]] || scontrol update job="$job" Comment="$(squeue --noheader --jobs="$job" --format=%k | sed "s/^(null)$//") render-job:completed" || true
}
trap epilogue EXIT

# Once the task of one node has ended, with success or not, the others have 120 s (preemption.grace).  Then render-job, if it is installed here, says what failed first.
trap '[[ ! -f /dev/stderr ]] || tail -c 20M /dev/stderr | render-job why - 2>/dev/null || true' ERR
srun --ntasks-per-node=1 --cpus-per-task=32 --kill-on-bad-exit=0 --wait=120 --mpi=pmix \
  '--container-image=registry.example#team/train:1.0' \
  --container-mounts=/data:/data:ro,/lustre/checkpoints/team/job:/checkpoints,/local:/cache,/etc/settings:/settings,/etc/keys:/keys \
  --container-env=WANDB_API_KEY,HF_TOKEN \
  bash -ec job_task & step=$!
wait "$step" && completed || code=$?
# Slurm signals the processes itself if it preempts the job.
[[ $(squeue --noheader --jobs="$job" --Format=PreemptTime) != *[0-9]* ]] || requeue
# If a node is lost, its part of the step stays until Slurm notices (SlurmdTimeout); then Slurm requeues the job.
while squeue --noheader --steps --jobs="$job" --format=%i | grep -q "[.][0-9]"; do sleep 5; done
(exit "$code")
