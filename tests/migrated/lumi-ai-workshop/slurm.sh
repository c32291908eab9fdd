#!/bin/bash
# Rendered by `render.py slurm job.yaml site.slurm.yaml`; edit the spec, not this file.
# Submit it with sbatch from the folder that is to hold the logs.
# One task per node: torchrun, which starts the 8 processes of its node.
#SBATCH --job-name=gpt-imdb
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=56
#SBATCH --gpus-per-node=8
#SBATCH --time=0-00:20:00
#SBATCH --partition=standard-g
#SBATCH --account=project_465002178
#SBATCH --reservation=AI_workshop_Day2
#SBATCH --no-requeue
#SBATCH --output=gpt-imdb-%j.log
#SBATCH --open-mode=append
#SBATCH --mem-per-gpu=60G
set -euo pipefail
: "${SLURM_JOB_ID:?is not set, so this is not a Slurm job: submit this script with sbatch}"
(( SLURM_JOB_NUM_NODES == 1 )) || { echo "rendered for one node, not $SLURM_JOB_NUM_NODES: set nodes in the spec" >&2; exit 1; }

# Unset variables left by an enclosing job: srun and torchrun would read them as their options.
for name in SLURMD_DEBUG "${!SLURM_@}" "${!SRUN_@}" "${!PET_@}"; do
  [[ $name =~ ^SLURM_(CONF|JWT|JOB|ARRAY_|SUBMIT_|CLUSTER_NAME|NODE_ALIASES|TMPDIR) ]] || unset "$name"
done
record=$(scontrol show job --oneliner "$SLURM_JOB_ID" | grep "^JobId=$SLURM_JOB_ID ")  # for the ID of an array, scontrol prints many
[[ $record == *" ArrayTaskId="* ]] || unset "${!SLURM_ARRAY_@}"
job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
restart=${record#* Restarts=} restart=${restart%% *}
log=gpt-imdb-$job-r$restart.log

# slurm.prologue of the spec.
set +u  # the lines may source files that read unset variables
for JOB_LINE in \
  'module purge' \
  'module use /appl/local/containers/ai-modules' \
  'module load singularity-AI-bindings' \
  'mkdir -p /scratch/project_465002178/torch-cache /flash/project_465002178/hf-cache' \
  'mkdir -p "$HOME/.apptainer-name" && ln -sfn "$(command -v singularity)" "$HOME/.apptainer-name/apptainer"' \
  'export PATH="$HOME/.apptainer-name:$PATH"'; do
  eval "$JOB_LINE" || { echo "slurm.prologue: this line failed: $JOB_LINE" >&2; exit 1; }
done
set -u

preflight() {  # on each node: finds what would otherwise show as a hang, or as an error far from its cause
  failed=0; problem() { echo "preflight: $SLURMD_NODENAME: $1" >&2; failed=1; }
  command -v apptainer >/dev/null || problem "apptainer is not found; install it on the node"
  if command -v nvidia-smi >/dev/null; then gpus=$(nvidia-smi -L); else gpus=$(ls /dev/dri/renderD* 2>/dev/null); fi
  gpus=$(awk '/^GPU|renderD/ { n++; whole = 1 } /^ *MIG/ { n += !whole; whole = 0 } END { print n + 0 }' <<< "$gpus")
  (( gpus >= 8 )) || problem "$gpus GPUs for 8 processes; look at the driver, or lower procs_per_node"
  return "$failed"
}
preflight || exit

program() {  # runs in the container
  export HF_HOME=/flash/project_465002178/hf-cache OMP_NUM_THREADS=7 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false \
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 TORCH_HOME=/scratch/project_465002178/torch-cache \
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/gpt-imdb-nccl-rank- TORCH_NCCL_DUMP_ON_TIMEOUT=1 \
    TORCH_NCCL_TRACE_BUFFER_SIZE=2000
  exec torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node=8 --max-restarts=0 -- GPT-neo-IMDB-finetuning.py \
    --model-name=gpt-imdb-model-multigpu \
    --output-path=/scratch/project_465002178/me/data/ \
    --logging-path=/scratch/project_465002178/me/runs/ \
    --num-workers=7 \
    --set-cpu-binds
}
JOB_PROGRAM="$(declare -f program); program"
task() {  # runs on the node, once for its 8 processes
  for name in "${!SLURM_@}"; do export "APPTAINERENV_$name=${!name}"; done
  if [ -e /dev/nvidiactl ]; then set -- --nv; else set -- --rocm; fi
  exec apptainer exec --no-eval "$@" \
    /appl/local/containers/sif-images/lumi-pytorch-rocm-6.2.4-python-3.12-pytorch-v2.6.0.sif sh -c \
    'eval "$JOB_PROGRAM"'
}
export JOB_PROGRAM; export -f task  # as variables, because all users of a node can read the arguments of its processes

echo "start $restart of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST; the processes write to $log"
# If a node fails, srun ends the others: they would only wait for it.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --export=ALL --cpus-per-task=56 --kill-on-bad-exit=1 --wait=60 --output="$log" --open-mode=append \
  bash -euc "export -fn task; task"
