#!/bin/bash
# Rendered by `render-job slurm least.yaml`; edit the spec, not this file.
# Submit it by `sbatch job.slurm.sh`, from the folder that is to hold the log.  End it: scancel JOB.  Why it waits: squeue --start -j JOB
#SBATCH --job-name=job
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --no-requeue
#SBATCH --output=job-%j.log
set -euo pipefail
: "${SLURM_JOB_ID:?submit this script with sbatch}"
(( $# == 0 )) || { echo "takes no arguments, so not $*: edit the spec" >&2; exit 1; }

job_task() {  # on each node: torchrun starts its 1 process
  export PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/job-nccl-rank- TORCH_NCCL_DUMP_ON_TIMEOUT=1 \
    TORCH_NCCL_TRACE_BUFFER_SIZE=2000
  exec torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node=1 -- mine.py
}
export -f job_task

# Variables of an enclosing job, which srun and torchrun would read as options.
for name in "${!SLURM_@}" "${!SRUN_@}" "${!PET_@}" "${!TORCHELASTIC_@}"; do
  [[ $name =~ ^SLURM_(CONF|JWT|JOB|ARRAY_|SUBMIT_|CLUSTER_NAME|NODE_ALIASES|TMPDIR) ]] || unset "$name"
done

# If a node fails, srun ends the others: they would only wait for it.  Then render-job, if it is installed here, says what failed first.
trap '[[ ! -f /dev/stderr ]] || tail -c 20M /dev/stderr | render-job why - 2>/dev/null || true' ERR
srun --nodes=1 --ntasks-per-node=1 --kill-on-bad-exit=1 bash -ec job_task
