#!/usr/bin/env bash
# Rendered by `render.py torchrun quickstart.yaml`; edit the spec, not this file.
# Not used here: image; this script runs in the shell's own environment, not in a container.
set -euo pipefail

# torchrun reads a flag from each PET_ variable; one that was left over in this shell would change the job.
unset "${!PET_@}"
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

exec python3 -c \
  'import importlib.util, os, sys
train = importlib.util.find_spec("train")
found = train and (train.origin or f"{list(train.submodule_search_locations)[0]}/")
if found and not os.path.exists(f"{os.path.dirname(found)}/ddp/reducer.py"):
    sys.exit(f"python -m train would run {found}, which is another program: rename it, or start in another folder")
os.execvp(sys.argv[1], sys.argv[1:])' torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node=2 --max-restarts=0 \
  -m train --device=cpu --model=mnist_cnn --dataset=synthetic --epochs=1 --batch-size=64 --optimizer=adam \
  --lr=0.001
