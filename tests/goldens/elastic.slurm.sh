#!/bin/bash
# Rendered by `render-job slurm elastic.yaml`; edit the spec, not this file.
# Submit it by `sbatch elastic.slurm.sh`, from the folder that is to hold the log.  End it: scancel JOB.  Why it waits: squeue --start -j JOB
# Not used here: image; slurm.runtime is none, so the processes run in the environment of the shell that calls sbatch.
# Not used here: mounts; slurm.runtime is none, so the processes see the paths of the nodes.
#SBATCH --job-name=elastic
#SBATCH --nodes=1-3
#SBATCH --no-kill
#SBATCH --no-requeue
#SBATCH --output=elastic-%j.log
set -euo pipefail
: "${SLURM_JOB_ID:?submit this script with sbatch}"
(( $# == 0 )) || { echo "takes no arguments, so not $*: edit the spec" >&2; exit 1; }

job_task() {  # on each node: torchrun starts its 2 processes
  # If the first node's name means this node here, this node would wait for itself forever.
  [[ $SLURM_NODEID == 0 || ! $(getent ahosts "$MASTER_ADDR") =~ ^(127\.|::1) ]] ||
    { echo "$SLURMD_NODENAME: $MASTER_ADDR, the first node, is a loopback address here: see /etc/hosts" >&2; exit 1; }
  export OMP_NUM_THREADS=1 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
  trap : TERM  # the processes get each signal, too: wait until they have saved
  torchrun --nnodes="1:$SLURM_NNODES" --rdzv-id="$SLURM_JOB_ID" \
    --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \
    --rdzv-conf="is_host=$(( SLURM_NODEID == 0 )),join_timeout=900,read_timeout=900" \
    --local-addr="${SLURMD_NODENAME}" --nproc-per-node=2 --max-restarts=5 --rdzv-backend=c10d -m train \
    --device=cpu \
    --model=mnist_cnn \
    --dataset=synthetic \
    --epochs=3 \
    --batch-size=96 \
    --optimizer=adam \
    --lr=0.001 \
    --checkpoint-dir=/checkpoints \
    --checkpoint-every=50 \
    --resume=auto && exit || code=$?
  # With the first node this script and the log are lost, too, and nothing else would end the job.
  sleep 30  # a node that shuts down refuses connections at first
  answer=$(LC_ALL=C; { : <"/dev/tcp/$MASTER_ADDR/$MASTER_PORT"; } 2>&1) || [[ $answer == *refused* ]] ||
    scancel "$SLURM_JOB_ID"
  exit "$code"
}
export -f job_task

# Variables of an enclosing job, which srun and torchrun would read as options.
for name in "${!SLURM_@}" "${!SRUN_@}" "${!PET_@}" "${!TORCHELASTIC_@}"; do
  [[ $name =~ ^SLURM_(CONF|JWT|JOB|ARRAY_|SUBMIT_|CLUSTER_NAME|NODE_ALIASES|TMPDIR) ]] || unset "$name"
done
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export MASTER_ADDR MASTER_PORT=$(( 20000 + SLURM_JOB_ID % 10000 ))

# If a node is lost, the others continue.  Then render-job, if it is installed here, says what failed first.
trap '[[ ! -f /dev/stderr ]] || tail -c 20M /dev/stderr | render-job why - 2>/dev/null || true' ERR
srun --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 bash -ec job_task
