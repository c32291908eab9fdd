"""`train.check(loop)`: any training loop on one process and on several, and the first tensor that differs."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DistributedSampler

from train.errors import UserError, leave, report
from train.world.environment import World
from train.world.local import refuse_second_launcher, run_on_this_machine

_FOLDER, _STEPS = "TRAIN_CHECK_FOLDER", 5
# Parts of a tensor's norm, of it after the first step (Adam enlarges rounding errors), and of all gradients' norm.
_TOLERANCE, _LATER, _ROUNDING = 1e-3, 0.1, 1e-6


def check(loop: Callable[[], object], procs: int = 2) -> None:
    """Run five steps of a training loop on one process and on `procs`, and name the first tensor that differs.

    Call it at the end of a script: it starts the script again as these processes, and calls the loop in each.  If
    inputs, learning rates, buffers or gradients differ, the program ends with a sentence and exit code 1.
    loop: trains from one seed, with one batch size over all processes together, without dropout.

    >>> check(lambda: None, procs=1)
    Traceback (most recent call last):
    train.errors.UserError: check(): procs is 1: give at least 2
    """
    if procs < 2:
        raise UserError(f"check(): procs is {procs}: give at least 2")
    if folder := os.environ.get(_FOLDER):
        _Notes(Path(folder, f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}"))
        loop()
        leave(0)
    refuse_second_launcher(World.detect(os.environ), "check()")
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        os.environ[_FOLDER] = folder
        for number in (1, procs):
            if code := run_on_this_machine(number, sys.orig_argv[1:]):
                sys.exit(code)
        del os.environ[_FOLDER]
        steps = sorted(file.name for file in Path(folder, "0 of 1").iterdir())
        for step in steps:
            # The ranks of one run first: those that do not average differ there already.
            for one, other in pairwise([*(f"{rank} of {procs}" for rank in reversed(range(procs))), "0 of 1"]):
                if said := _difference(Path(folder, other, step), Path(folder, one, step)):
                    sys.exit(f"rank {other} and rank {one} first differ in step {step}: {said}")
    if not steps:
        sys.exit("check(): the loop made no step of an optimizer of torch.optim")
    print(f"{len(steps)} steps on 1 and on {procs} processes have the same inputs, buffers and gradients")


class _Notes:
    """Writes what each step of this rank used into a file of `folder`, and ends the process after the last."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._step, self._names = folder, 0, dict[Tensor, str]()
        self._reader: nn.Module | None = None  # whose inputs are summed: the first that got a tensor
        self._inputs = torch.zeros((), dtype=torch.float64)
        register_module_forward_pre_hook(self._forward)
        register_optimizer_step_post_hook(self._stepped)  # Lightning computes the gradients in step()
        _refuse_one_order()

    def _forward(self, module: nn.Module, inputs: Any) -> None:
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:  # of the outermost module first
            self._names.setdefault(tensor, name.removeprefix("module."))
        if inputs and isinstance(inputs[0], Tensor) and self._reader in (None, module) and torch.is_grad_enabled():
            self._reader = module
            self._inputs = self._inputs.to(inputs[0].device) + inputs[0].detach().double().sum()

    def _stepped(self, optimizer: optim.Optimizer, *_: Any) -> None:
        self._step += 1
        if dist.is_initialized():
            dist.all_reduce(self._inputs)
        seen = [("sum of all inputs", self._inputs)]
        seen += [(f"buffer {name}", it) for it, name in self._names.items() if not isinstance(it, nn.Parameter)]
        for number, group in enumerate(optimizer.param_groups):
            seen.append((f"learning rate of group {number}", torch.as_tensor(group["lr"])))
            for param in group["params"]:
                gradient = torch.zeros(()) if param.grad is None else param.grad
                seen.append((f"gradient of {self._names.get(param, 'a parameter')}", gradient))
        on_cpu = [(name, tensor.detach().to("cpu", torch.float64)) for name, tensor in seen]
        torch.save(on_cpu, self._folder / str(self._step))
        self._inputs = torch.zeros_like(self._inputs)
        if self._step == _STEPS:
            leave(0)


def _refuse_one_order() -> None:
    """End this process if a DistributedSampler shuffles for a training loop that has not called set_epoch()."""
    told, set_epoch, read = set[int](), DistributedSampler.set_epoch, DistributedSampler.__iter__

    def note(sampler: DistributedSampler[Any], epoch: int) -> None:
        told.add(id(sampler))
        set_epoch(sampler, epoch)

    def begin(sampler: DistributedSampler[Any]) -> Iterator[Any]:
        if sampler.shuffle and id(sampler) not in told and torch.is_grad_enabled():
            text = "check(): a DistributedSampler shuffles without set_epoch(epoch): each epoch has the same order"
            report(UserError(text))
            leave(1)
        return read(sampler)

    DistributedSampler.set_epoch = note  # type: ignore[assignment, method-assign]
    DistributedSampler.__iter__ = begin  # type: ignore[method-assign]


def _difference(one: Path, other: Path) -> str | None:
    if not (one.exists() and other.exists()):
        return "only one has made it"
    seen, others = torch.load(one), torch.load(other)
    floor = _ROUNDING * sum(float(it.square().sum()) for name, it in seen if name.startswith("gradient")) ** 0.5
    for (name, a), (_, b) in zip(seen, others, strict=False):  # a wrapper may give them other names
        a, b = torch.broadcast_tensors(a, b)  # one may be absent
        norms = float(a.norm()), float(b.norm())
        share = _TOLERANCE if one.name == "1" or not name.startswith(("gradient", "buffer")) else _LATER
        if not float((a - b).norm()) <= max(share * max(norms), floor):  # nor is NaN the same
            cosine = float((a * b).sum()) / (norms[0] * norms[1] or 1.0)
            return f"the {name} has norm {norms[0]:.6g} and {norms[1]:.6g}, cosine {cosine:.6f}"
    return None
