"""What CustomDDP refuses: in words, on all ranks, and within its timeout, on real processes."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ranks import run_ranks
from tests.train.ddp.cases import IN_MEMORY, plain
from train.ddp.wrapper import CustomDDP
from train.sync.all_reduce import AllReduce
from train.world.environment import World


def _message(function: Callable[[], object]) -> str:
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def _linears(*sizes: int, **options: object) -> nn.Module:
    return nn.Sequential(*(nn.Linear(8, size, **options) for size in sizes))  # type: ignore[arg-type]


# What rank 1 builds in place of three layers of 8×8, and the message of every rank.
DIFFERENT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "shapes": (lambda: _linears(8, 8, 9), "rank 0 has 2.weight (8, 8) torch.float32, rank 1 has 2.weight (9, 8)"),
    "types": (lambda: _linears(8, 8, 8).bfloat16(), "rank 1 has 0.weight (8, 8) torch.bfloat16"),
    "fewer parameters": (lambda: _linears(8, 8), "rank 0 has 2.weight (8, 8) torch.float32, rank 1 has nothing"),
    "more parameters": (lambda: _linears(8, 8, 8, 8), "numbers of parameters and buffers, by rank: 6, 8, 6"),
    "one frozen": (lambda: _one_frozen(), "rank 1 has 0.weight (8, 8) torch.float32 frozen"),
    "memory formats": (lambda: _transposed(), "rank 1 has 0.weight (8, 8) torch.float32 strides (1, 8)"),
    "settings": (lambda: _linears(8, 8, 8), "rank 0 has bucket_mib=25.0, rank 1 has bucket_mib=1.0"),
}


def _one_frozen() -> nn.Module:
    model = _linears(8, 8, 8)
    next(model.parameters()).requires_grad_(False)
    return model


def _transposed() -> nn.Module:
    model = _linears(8, 8, 8)
    first = next(model.parameters())
    first.data = first.data.t()
    return model


def _different_models(world: World) -> dict[str, str]:
    messages = {}
    for what, (build, _) in DIFFERENT.items():
        model = build() if world.rank == 1 else _linears(8, 8, 8)
        bucket_mib = 1.0 if what == "settings" and world.rank == 1 else 25.0
        messages[what] = _message(lambda: CustomDDP(model, bucket_mib=bucket_mib))  # noqa: B023
    return messages


def test_models_that_differ_are_refused_on_all_ranks_naming_what_differs() -> None:
    for messages in run_ranks(3, _different_models):
        for what, (_, expected) in DIFFERENT.items():
            assert expected in messages[what]
            assert messages[what].startswith("SharedError: ")


def _missing_rank(world: World) -> str:
    wrapped = CustomDDP(plain(), sync=IN_MEMORY, bucket_mib=0.001)
    wrapped(torch.ones(2, 8)).sum().backward()
    wrapped.reducer.sync._shared.timeout_s = 1  # type: ignore[attr-defined]  # the first may take as long as it likes
    message = "" if world.rank == 1 else _message(lambda: wrapped(torch.ones(2, 8)).sum().backward())
    # Rank 1 stays alive and does something else until the others have given up.
    dist.barrier()
    return message


# Over the network and of ranks that have ended: tests/train/collectives/test_missing_ranks.py.
def test_a_reduction_through_shared_memory_that_never_completes_names_bucket_parameters_and_missing_rank() -> None:
    first, _, last = run_ranks(3, _missing_rank)
    for message in (first, last):
        assert message.startswith("UserError: the gradients of 4.")
        assert "(backward 2, bucket 1) were not averaged" in message
        assert "rank 1" in message and "rank 0" not in message and "rank 2" not in message


def test_without_a_process_group_the_remedy_is_named() -> None:
    message = _message(lambda: CustomDDP(plain()))
    assert message.startswith("UserError: CustomDDP needs a process group") and "init_process_group()" in message


def _sparse() -> None:
    CustomDDP(nn.Embedding(4, 4, sparse=True))(torch.tensor([1])).sum().backward()


def _frozen_then_not() -> None:
    model = plain()
    next(model.parameters()).requires_grad_(False)
    wrapped = CustomDDP(model)
    next(model.parameters()).requires_grad_(True)
    wrapped(torch.ones(2, 8))


def _converted_later() -> None:
    wrapped = CustomDDP(plain()).double()
    with torch.no_grad():
        wrapped(torch.ones(2, 8, dtype=torch.float64))
    wrapped(torch.ones(2, 8, dtype=torch.float64))


def _made_by_a_function_with_options() -> None:
    # So that the functions of the ranks have different addresses.
    before = [lambda: None for _ in range(1000 * dist.get_rank())]

    def make(group: dist.ProcessGroup, numbers: object) -> AllReduce:
        return AllReduce(group)

    CustomDDP(plain(), sync=partial(make, numbers=object()))
    del before


# What a person does, and the message of every rank: its beginning and its end.
USES: list[tuple[Callable[[], object], str, str]] = [
    (_made_by_a_function_with_options, "accepted", ""),
    (_frozen_then_not, "0.weight was frozen when CustomDDP was made, but is now trained", ": wrap the module again"),
    (_converted_later, "0.weight was torch.float32 on cpu when CustomDDP was made and is torch.flo", ""),
    (_sparse, "weight has sparse gradients", "use sparse=False"),
]


def _use(world: World) -> list[str]:
    return [_message(use) for use, _, _ in USES]


def test_what_cannot_be_averaged_is_refused_with_the_remedy_on_all_ranks() -> None:
    for messages in run_ranks(2, _use):
        for message, (_, start, end) in zip(messages, USES, strict=True):
            assert message.removeprefix("UserError: ").startswith(start)
            assert end in message


def _compiled_backward(world: World) -> str:
    from torch._dynamo import compiled_autograd  # here, as it takes a second

    wrapped = CustomDDP(_linears(8, 8))
    loss = wrapped(torch.full((2, 8), 1.0 + world.rank)).square().sum()
    with compiled_autograd._enable(torch.compile(backend="eager")):
        return _message(loss.backward)


@pytest.mark.slow
def test_backward_under_compiled_autograd_is_refused_on_all_ranks() -> None:
    for message in run_ranks(2, _compiled_backward):
        assert message.startswith("UserError: CustomDDP cannot average in a backward under compiled autograd")
