"""Frameworks of docs/frameworks.md, in two processes: stopped by SIGTERM to torchrun, and started again."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.cli import ROOT

# What a job on Slurm also sees, whose task is torchrun.
_SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "job", "SLURM_NNODES": "1", "SLURM_NTASKS": "1"}
_SLURM |= {f"SLURM_{name}": "0" for name in ("PROCID", "LOCALID", "NODEID")}
# Three epochs of 160 samples, in batches of 4; the model writes down the samples that it trains on.
_COMMON = """
import os, sys, time
import torch.distributed.nn
open("pid-" + os.environ["RANK"], "w").write(str(os.getpid()))
from torch.utils.data import DataLoader
%s
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), 0
    def forward(self, x):
        with open("seen-" + os.environ["RANK"], "a") as seen:
            seen.writelines(f"{int(one)}\\n" for one in x.flatten())
        self.seen += len(x)
        while self.seen == 104 and not os.path.exists("signalled"):  # in the second epoch
            time.sleep(0.01)
        return {"loss": self.layer(x / 1000).square().mean()}
DATA = [{"x": x} for x in torch.arange(160.0)[:, None]]
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""
_PROGRAMS = {
    "lightning": """
import lightning
%s
from lightning.pytorch.callbacks import ModelCheckpoint
class Ours(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()
    def on_train_start(self):
        os.write(1, b"from %d\\n" % self.global_step)
    def training_step(self, batch, _):
        return self.net(**batch)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
callbacks = [ModelCheckpoint("checkpoints", save_last=True), Save()]
trainer = lightning.Trainer(num_nodes=1, devices=2, accelerator="cpu", max_epochs=3, logger=False, callbacks=callbacks)
trainer.fit(Ours(), DataLoader(DATA, 4, shuffle=True), ckpt_path="last")
""",
    "transformers": """
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint
class Stops(TrainerCallback):
    def on_train_begin(self, args, state, control, **_):
        os.write(1, b"from %d\\n" % state.global_step)
        self.stop = Stop()
    def on_step_end(self, args, state, control, **_):
        if self.stop():
            control.should_save = control.should_training_stop = True
os.makedirs("kept", exist_ok=True)
arguments = TrainingArguments("kept", use_cpu=True, per_device_train_batch_size=4, num_train_epochs=3, report_to=[])
Trainer(Net(), arguments, train_dataset=DATA, callbacks=[Stops()]).train(get_last_checkpoint("kept"))
""",
    "accelerate": """
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration, set_seed
set_seed(1)
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
net, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(DATA, 4, shuffle=True))
os.makedirs("kept", exist_ok=True)
stop, step = Stop(), int(max(os.listdir("kept"), default=0))
step and accelerator.load_state(f"kept/{step}")
os.write(1, b"from %d\\n" % step)
for epoch in range(step // len(loader), 3):
    loader.set_epoch(epoch)
    for batch in skip_first_batches(loader, step % len(loader)):
        accelerator.backward(net(**batch)["loss"])
        optimizer.step()
        step += 1
        if stop():
            sys.exit(accelerator.save_state(f"kept/{step}"))
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", _PROGRAMS)
def test_all_ranks_save_the_same_step_at_sigterm_and_the_next_start_resumes_there(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name, reason=f"{name} is no dependency of the project: pip install {name}")
    stop, save = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "frameworks.md").read_text(), re.M | re.S)
    (tmp_path / "mine.py").write_text(_COMMON % stop + _PROGRAMS[name].replace("%s", save))
    files = [tmp_path / f"seen-{rank}" for rank in range(2)]
    command = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2 mine.py >>said 2>&1"
    environ = os.environ | _SLURM
    torchrun = subprocess.Popen(["sh", "-c", f"exec {command}"], cwd=tmp_path, env=environ)
    while not files[0].exists() or len(files[0].read_text().split()) < 104:
        assert torchrun.poll() is None, (tmp_path / "said").read_text()
        time.sleep(0.05)
    # As a script for Slurm does it: a process gets the signal from Slurm, and again from torchrun.
    os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGTERM)
    torchrun.terminate()
    (tmp_path / "signalled").touch()
    torchrun.wait()
    steps, others = (len(file.read_text().split()) // 4 for file in files)
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environ)
    said = (tmp_path / "said").read_text()
    starts = said.count("from 0\n"), said.count(f"from {steps}\n")
    assert (torchrun.returncode, done.returncode, others, *starts) == (1, 0, steps, 2, 2), said
    seen = Counter(number for file in files for number in file.read_text().split())
    assert seen.total() == 3 * 160 and (set(seen.values()) == {3} or name == "lightning")
