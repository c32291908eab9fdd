"""The checks in their order: name, title, function and time limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Check:
    """One check.

    function: "module:name"; a module without a dot is in this package.  It is called with the device, "cuda" or
    "cpu", and returns a record of plain numbers and words, or raises an Outcome or any other error.
    """

    title: str
    function: str
    limit_s: float

    def load(self) -> Callable[[str], dict[str, Any]]:
        module, _, name = self.function.partition(":")
        module = module if "." in module else f"{__package__}.{module}"
        function: Callable[[str], dict[str, Any]] = getattr(import_module(module), name)
        return function


# What only a GPU can show comes first, and of that what the rest depends on: syncs over gloo and NCCL, then the tests
# marked for CUDA, then one part of `train` after the other.  Figures, trainings and the tests that a CPU runs too come
# last.  A machine may end a command after ten minutes, so each check fits into one.
CHECKS = {
    "c": Check("two ranks on one GPU over gloo: every sync, with a delayed backward", "two_ranks:over_gloo", 180),
    "e": Check("two NCCL ranks on one GPU: what (c) and (d) check", "two_ranks:over_nccl", 380),
    "d": Check("the tests marked for CUDA, and BatchNorm with an empty rank", "two_ranks:marked_tests", 420),
    "h": Check("20 steps without a synchronisation of the host", "synchronisations:run", 200),
    "g": Check("reserved memory over 40 epochs of input", "memory:run", 200),
    "f": Check("kill -9 and out of memory of one rank: message and seconds", "deaths:run", 400),
    "k": Check("SIGTERM: saved, exit code 143, and the next start continues", "sigterm:run", 200),
    "j": Check("the same weights after a resume, with and without --deterministic", "resume:run", 300),
    "b": Check("losses of three models in three precisions against the CPU's", "losses:run", 300),
    "i": Check("time of a step: CustomDDP, native DDP, bare module", "step_time:run", 530),
    "n": Check("time of a step in fp32, tf32 and bf16, compiled and not", "precisions:run", 530),
    "l": Check("MNIST in the published setting, 14 epochs: accuracy and time", "published:mnist", 300),
    "m": Check("FashionMNIST in the published setting, ten epochs", "published:fashion_mnist", 550),
    "a1": Check("the fast tests with CUDA visible", "suite:fast", 480),
    "a2": Check("the slow tests with CUDA visible, without those marked long", "suite:slow", 550),
}
