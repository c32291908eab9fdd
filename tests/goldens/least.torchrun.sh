#!/usr/bin/env bash
# Rendered by `render-job torchrun least.yaml`; edit the spec, not this file.
set -euo pipefail
refuse() { echo "job: $1" >&2; exit 1; }
(( $# == 0 )) || refuse "takes no arguments, so not $*: edit the spec"
# torchrun reads a flag from each PET_ variable; one that was left over in this shell would change the job.
unset "${!PET_@}"

export PYTHONUNBUFFERED=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
  TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/job-nccl-rank- TORCH_NCCL_DUMP_ON_TIMEOUT=1 \
  TORCH_NCCL_TRACE_BUFFER_SIZE=2000
exec torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node=1 \
  -- mine.py
