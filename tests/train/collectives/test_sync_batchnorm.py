"""SyncBatchNorm against torch's BatchNorm on the whole batch."""

import functools
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.ranks import run_ranks
from tests.train.devices import device_of, devices
from train.collectives.sync_batchnorm import SyncBatchNorm, has_sync_batchnorm
from train.errors import UserError
from train.world.environment import World

SHAPES = [(6, 5), (6, 5, 3), (6, 5, 4, 4), (6, 5, 1, 1), (6, 5, 2, 2, 2)]
# How the six samples are split over the ranks; ranks without any take part.
SPLITS = [(6,), (5, 1), (6, 0), (2, 0, 4)]
KINDS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
OPTIONS = [{}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}]
# Types of the input and of the module.
TYPES = {
    "double": (torch.float64, torch.float64),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "float16": (torch.float16, torch.float16),
    "bfloat16 inputs": (torch.bfloat16, torch.float32),
}
# Four roundings; in the wide types taking away a mean of thirty deviations costs more, once and squared.
ERROR = {torch.bfloat16: 2**-5, torch.float16: 2**-8, torch.float32: 2**-15, torch.float64: 2**-38}

Outcome = dict[str, Tensor]


def _norm(shape: tuple[int, ...], options: int) -> nn.Module:
    torch.manual_seed(0)
    norm = KINDS[len(shape)](shape[1], **OPTIONS[options])  # type: ignore[arg-type]
    if norm.affine:
        with torch.no_grad():
            norm.weight.uniform_(0.5, 2)
            norm.bias.uniform_(-1, 1)
    return norm


def _two_steps(
    norm: nn.Module,
    shape: tuple[int, ...],
    mine: slice,
    rounded: torch.dtype = torch.float32,
    dtype: torch.dtype = torch.float32,
) -> Outcome:
    """Outputs, gradients and buffers of two training steps, then the output in evaluation.

    dtype: type of the inputs, after they were rounded to `rounded`.
    """
    generator = torch.Generator().manual_seed(1)
    outcome: Outcome = {}
    for step in range(2):
        # A mean far from zero shows a variance that was computed carelessly.
        x = (torch.randn(shape, generator=generator) * 3 + 100)[mine].to(rounded).to(dtype).clone().requires_grad_()
        output = norm(x)
        output.backward(torch.randn(shape, generator=generator)[mine].to(rounded).to(dtype))
        assert x.grad is not None
        outcome |= {f"output {step}": output.detach(), f"grad {step}": x.grad}
    outcome |= {f"sum {name}": param.grad for name, param in norm.named_parameters() if param.grad is not None}
    outcome |= {f"buffer {name}": buffer for name, buffer in norm.named_buffers()}
    norm.eval()
    if norm.track_running_stats:
        outcome["output in evaluation"] = norm(torch.randn(shape, generator=generator)[mine].to(rounded).to(dtype))
    return {name: tensor.detach().clone() for name, tensor in outcome.items()}


def _all_cases(world: World, split: tuple[int, ...]) -> list[Outcome]:
    start = sum(split[: world.rank])
    mine = slice(start, start + split[world.rank])
    return [
        _two_steps(SyncBatchNorm.convert_sync_batchnorm(_norm(shape, options), None), shape, mine)
        for shape in SHAPES
        for options in range(len(OPTIONS))
    ]


@functools.cache
def synchronised(split: tuple[int, ...]) -> list[list[Outcome]]:
    """One start of processes for all cases of a split."""
    return run_ranks(len(split), _all_cases, split)


@pytest.mark.parametrize("options", range(len(OPTIONS)), ids=lambda index: str(OPTIONS[index]))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("split", SPLITS, ids=lambda split: f"split={split}")
def test_outputs_gradients_and_statistics_equal_batchnorm_on_the_whole_batch(
    split: tuple[int, ...], shape: tuple[int, ...], options: int
) -> None:
    expected = _two_steps(_norm(shape, options), shape, slice(0, 6))
    of_ranks = [results[SHAPES.index(shape) * len(OPTIONS) + options] for results in synchronised(split)]
    for name, tensor in expected.items():
        parts = [outcome[name] for outcome in of_ranks]
        if name.startswith("buffer"):
            assert all(torch.equal(part, parts[0]) for part in parts)
            whole = parts[0]
        else:
            whole = sum(parts[1:], parts[0]) if name.startswith("sum") else torch.cat(parts)
        torch.testing.assert_close(whole, tensor, rtol=1e-4, atol=2e-4, msg=name)


def _types(world: World) -> dict[str, list[Outcome]]:
    mine = slice(0, 5) if world.rank == 0 else slice(5, 6)
    return {
        name: [
            _two_steps(
                SyncBatchNorm.convert_sync_batchnorm(_norm(SHAPES[2], options).to(of_module), None),
                SHAPES[2],
                mine,
                of_input,
                of_input,
            )
            for options in range(len(OPTIONS))
        ]
        for name, (of_input, of_module) in TYPES.items()
    }


def test_each_floating_type_is_as_precise_as_its_roundings_allow() -> None:
    of_ranks = run_ranks(2, _types)
    for name, (of_input, of_module) in TYPES.items():
        for options in range(len(OPTIONS)):
            # What the same numbers become in float64.
            norm = _norm(SHAPES[2], options).to(of_module).double()
            for what, exact in _two_steps(norm, SHAPES[2], slice(0, 6), of_input, torch.float64).items():
                parts = [results[name][options][what] for results in of_ranks]
                of_result = of_module if what.startswith(("sum", "buffer")) else of_input
                assert all(part.dtype == of_result or "num_batches" in what for part in parts)
                if what.startswith("sum"):
                    whole = parts[0].double() + parts[1].double()
                else:
                    whole = parts[0] if what.startswith("buffer") else torch.cat(parts)
                error = ERROR[of_result]
                torch.testing.assert_close(whole.double(), exact.double(), rtol=error, atol=error, msg=f"{name} {what}")


def _note_and_call(sent: list[tuple[torch.dtype, int]], collective: Any, tensor: Tensor, *args: Any, **kw: Any) -> Any:
    sent.append((tensor.dtype, tensor.numel()))
    return collective(tensor, *args, **kw)


def _under_autocast(
    world: World, dtype: torch.dtype, device_name: str
) -> tuple[list[tuple[torch.dtype, int]], Outcome]:
    """What travels in a step of a convolution and its BatchNorm, where rank 1 has no samples; then the results."""
    patch = pytest.MonkeyPatch()
    sent: list[tuple[torch.dtype, int]] = []
    for name in ("all_reduce", "all_gather_into_tensor"):
        patch.setattr(dist, name, partial(_note_and_call, sent, getattr(dist, name)))
    device = device_of(device_name)
    torch.manual_seed(0)
    model = SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)), None).to(device)
    x = torch.randn(6, 1, 8, 8)[: 0 if world.rank else 6].to(device)
    with torch.autocast(device.type, dtype=dtype):
        output = model(x)
    output.float().square().sum().backward()
    norm = model.get_submodule("1")
    return sent, {name: tensor.detach().cpu() for name, tensor in {**norm.state_dict(), "output": output}.items()}


@devices
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_under_autocast_a_rank_without_samples_sends_float32_as_the_others_do(dtype: torch.dtype, device: str) -> None:
    (sent, first), (sent_by_empty, empty) = run_ranks(2, _under_autocast, dtype, device)
    assert sent == sent_by_empty and {kind for kind, _ in sent} == {torch.float32}
    assert first["output"].dtype == dtype and first["output"].isfinite().all()
    for name in first:
        assert name == "output" or torch.equal(first[name], empty[name])


def _few_numbers(world: World, device_name: str) -> list[list[float]]:
    """Running mean, running variance and number of batches after a step with 4, 0, 1 and 0 samples of all ranks."""
    device = device_of(device_name)
    results = []
    for momentum in (0.1, None):
        norm = SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(1, momentum=momentum), None).to(device)
        for of_rank_0, of_rank_1 in ((2, 2), (0, 0), (0, 1), (0, 0)):
            x = torch.arange(4.0, device=device).view(4, 1)[: (of_rank_0, of_rank_1)[world.rank]].requires_grad_()
            norm(x).sum().backward()
            assert x.grad is not None and x.grad.isfinite().all()
            results.append([float(value) for value in norm.state_dict().values()][-3:])
    return results


@devices
def test_running_statistics_keep_their_values_where_all_ranks_have_one_sample_or_none(device: str) -> None:
    first, second = run_ranks(2, _few_numbers, device)
    assert first == second
    # Samples 0, 1, 0, 1: mean 1/2, unbiased variance 1/3.
    assert first[:4] == [pytest.approx([0.05, 0.9 + 0.1 / 3, 1])] * 4
    assert first[4:] == [pytest.approx([0.5, 1 / 3, 1])] * 4


def _beside_training(world: World) -> tuple[bool | None, str]:
    """Rank 0 alone evaluates; then both ask for a second derivative."""
    norm = SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(3, track_running_stats=False), None)
    x = torch.randn(4, 3, requires_grad=True)
    alike = None
    if world.rank == 0:
        alike = torch.equal(norm.eval()(x), nn.BatchNorm1d(3, track_running_stats=False)(x))
    try:
        torch.autograd.grad(norm.train()(x).square().sum(), x, create_graph=True)
    except UserError as error:
        return alike, str(error)
    return alike, "accepted"


@functools.cache
def beside_training() -> list[tuple[bool | None, str]]:
    return run_ranks(2, _beside_training)


def test_evaluation_without_running_statistics_takes_those_of_the_rank_and_waits_for_nobody() -> None:
    assert [alike for alike, _ in beside_training()] == [True, None]


def test_second_derivatives_are_refused_rather_than_wrong() -> None:
    for _, message in beside_training():
        assert message.startswith("SyncBatchNorm has no second derivatives")
        assert "create_graph=True" in message and "sync_batchnorm=False" in message


class _Backward(TorchDispatchMode):
    """Notes the arguments of the native kernel of the backward pass."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.arguments: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.native_batch_norm_backward.default:
            self.arguments.append(args)
        return func(*args, **(kwargs or {}))


def _statistics_of_backward(world: World) -> list[tuple[Tensor, ...]]:
    norm = SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(3), None)
    output = norm(torch.randn(4, 3))
    with _Backward() as backward:
        output.square().sum().backward()
    [(_, _, _, *statistics, _, _, _)] = backward.arguments
    return [tuple(statistics)]


def test_the_kernel_of_backward_gets_both_pairs_of_statistics_as_cuda_wants_them() -> None:
    """CUDA's kernel for inputs (N, C) and channels-last ones reads the second pair, and aborts without it."""
    [(mean, variance, saved_mean, saved_inverse_std)] = run_ranks(2, _statistics_of_backward)[0]
    assert torch.equal(saved_mean, mean)
    assert torch.allclose(saved_inverse_std, (variance + 1e-5).rsqrt())


def test_conversion_keeps_names_parameters_and_buffers() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.BatchNorm2d(4)))
    before = model.state_dict(keep_vars=True)
    converted = SyncBatchNorm.convert_sync_batchnorm(model, None)
    after = converted.state_dict(keep_vars=True)
    assert [*before] == [*after]
    assert all(after[name] is before[name] for name in before)
    assert has_sync_batchnorm(converted)
    assert sum(isinstance(part, SyncBatchNorm) for part in converted.modules()) == 2


class _Activated(nn.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).relu()


def test_conversion_keeps_hooks_and_second_names_and_refuses_a_forward_that_it_would_lose() -> None:
    norm = nn.BatchNorm1d(3)
    norm.register_forward_hook(lambda module, inputs, output: output + 5)
    first, second = SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(norm, norm)).eval()._modules.values()
    assert first is second and isinstance(first, SyncBatchNorm)
    assert first(torch.zeros(2, 3)).mean() == 5
    with pytest.raises(UserError, match="1 is a _Activated, whose own forward would be lost"):
        SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(3, 3), _Activated(3)))
    replaced = nn.BatchNorm1d(3)
    replaced.forward = torch.relu  # type: ignore[method-assign]
    with pytest.raises(UserError, match="the model is a BatchNorm1d, whose own forward would be lost"):
        SyncBatchNorm.convert_sync_batchnorm(replaced)
