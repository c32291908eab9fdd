#!/bin/bash
# Rendered by `render.py slurm job.yaml site.slurm.yaml`; edit the spec, not this file.
# Submit it with sbatch from the folder that is to hold the logs.
# One task per node: torchrun, which starts the 8 processes of its node.
#SBATCH --job-name=algoperf
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --partition=v100
#SBATCH --array=0-5
#SBATCH --no-requeue
#SBATCH --output=algoperf-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --exclusive
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
log=algoperf-$job-r$restart.log

# slurm.prologue of the spec.
set +u  # the lines may source files that read unset variables
# shellcheck disable=SC2041
for JOB_LINE in \
  'gcloud auth configure-docker us-central1-docker.pkg.dev --quiet'; do
  eval "$JOB_LINE" || { echo "slurm.prologue: this line failed: $JOB_LINE" >&2; exit 1; }
done
set -u

preflight() {  # on each node: finds what would otherwise show as a hang, or as an error far from its cause
  failed=0; problem() { echo "preflight: $SLURMD_NODENAME: $1" >&2; failed=1; }
  command -v docker >/dev/null || problem "docker is not found; install it on the node"
  if command -v nvidia-smi >/dev/null; then gpus=$(nvidia-smi -L); else gpus=$(ls /dev/dri/renderD* 2>/dev/null); fi
  gpus=$(awk '/^GPU|renderD/ { n++; whole = 1 } /^ *MIG/ { n += !whole; whole = 0 } END { print n + 0 }' <<< "$gpus")
  (( gpus >= 8 )) || problem "$gpus GPUs for 8 processes; look at the driver, or lower procs_per_node"
  shm=$(df --block-size=1M --output=size /dev/shm | tail -n 1)
  (( shm >= 65536 )) || problem "/dev/shm holds $shm MiB, but resources.shm is 65536 MiB; lower it, or ask the site for more"
  return "$failed"
}
preflight || exit

program() {  # runs in the container
  export OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/algoperf-nccl-rank- TORCH_NCCL_DUMP_ON_TIMEOUT=1 \
    TORCH_NCCL_TRACE_BUFFER_SIZE=2000
  cd /algorithmic-efficiency || exit
  case $SLURM_ARRAY_TASK_ID in  # sweep of the spec
    0) export RNG_SEED=1996 WORKLOAD=fastmri; set --  ;;
    1) export RNG_SEED=2024 WORKLOAD=fastmri; set --  ;;
    2) export RNG_SEED=1996 WORKLOAD=ogbg; set --  ;;
    3) export RNG_SEED=2024 WORKLOAD=ogbg; set --  ;;
    4) export RNG_SEED=1996 WORKLOAD=wmt; set --  ;;
    5) export RNG_SEED=2024 WORKLOAD=wmt; set --  ;;
    *) echo "the sweep has no combination $SLURM_ARRAY_TASK_ID" >&2; exit 1 ;;
  esac
  exec torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node=8 --max-restarts=0 --no-python \
    -- bash \
    -c \
    'exec python3 submission_runner.py --framework=pytorch --workload="$$WORKLOAD" --rng_seed="$$RNG_SEED" --submission_path=submissions_algorithms/nadamw/submission.py --tuning_search_space=submissions_algorithms/nadamw/tuning_search_space.json --data_dir=/data/"$$WORKLOAD" --experiment_dir=/experiments --experiment_name="$$WORKLOAD-$$RNG_SEED" --overwrite' "$@"
}
JOB_PROGRAM="$(declare -f program); program"
task() {  # runs on the node, once for its 8 processes
  name=slurm-$SLURM_JOB_ID.$SLURM_STEP_ID.$SLURM_PROCID
  docker rm --force "$name" >/dev/null 2>&1 || true
  set -- --name="$name" --user="$(id -u):$(id -g)"
  for name in JOB_PROGRAM USER "${!SLURM_@}"; do set -- "$@" "--env=$name"; done
  gpus=${CUDA_VISIBLE_DEVICES:?is not set: Slurm gave this task no GPU}
  [[ $gpus == *-* ]] || gpus=$(nvidia-smi --id="$gpus" --query-gpu=uuid --format=csv,noheader)
  set -- "$@" --gpus="\"device=${gpus//[[:space:]]/,}\""
  exec docker run "$@" \
    --rm --network=host --ipc=host --mount=type=bind,source=/opt/data,target=/data,readonly \
    --mount=type=bind,source=/home/me/submissions_algorithms,target=/algorithmic-efficiency/submissions_algorithms,readonly \
    --mount=type=bind,source=/home/me/experiments,target=/experiments --init --entrypoint= \
    us-central1-docker.pkg.dev/project/repo/algoperf_pytorch:latest sh -c 'eval "$JOB_PROGRAM"'
}
export JOB_PROGRAM; export -f task  # as variables, because all users of a node can read the arguments of its processes

echo "start $restart of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST; the processes write to $log"
# If a node fails, srun ends the others: they would only wait for it.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --export=ALL --kill-on-bad-exit=1 --wait=60 --output="$log" --open-mode=append \
  bash -euc "export -fn task; task"
