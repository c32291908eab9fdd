"""One's own loop: the losses of a plain loop on any number of processes, after kills and signals, too."""

import doctest
import functools
import itertools
import os
import runpy
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import TensorDataset

import train
from tests.cli import records, start_ranks
from tests.ranks import launched
from train.collectives.agreement import Stopped
from train.data.shard import epoch_order
from train.records import progress
from train.run import Run
from train.world.signals import SIGNALS

_SCRIPTS = Path(__file__).parents[2] / "jobs" / "scripts"
_SEED, _SAMPLES, _BATCH = 1, 1003, 77


def _script(name: str, folder: Path) -> None:
    """Run jobs/scripts/NAME.py in this process."""
    sys.argv = [name, f"--folder={folder}"]
    runpy.run_path(str(_SCRIPTS / f"{name}.py"), run_name="__main__")


def _killed_script(folder: Path, killed: int, step: int) -> None:
    """Run regression.py, with a SIGKILL of one rank before a step of its optimizer."""
    steps = itertools.count(1)

    def kill(*_: object) -> None:
        if int(os.environ["RANK"]) == killed and next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_pre_hook(kill)
    _script("regression", folder)


def _orders(epochs: int = 3) -> list[Tensor]:
    orders = [torch.tensor(epoch_order(_SAMPLES, _SEED, epoch)) for epoch in range(1, epochs + 1)]
    return [indices for order in orders for indices in order.split(_BATCH)]


def _plain_regression() -> list[float]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(_SAMPLES, 2, generator=generator) * 4 - 2
    y = x[:, :1].sin() * x[:, 1:] + 0.01 * torch.randn(_SAMPLES, 1, generator=generator)
    torch.manual_seed(_SEED)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for indices in _orders():
        loss = F.mse_loss(model(x[indices]), y[indices])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def _plain_gan() -> list[float]:
    draws = torch.Generator().manual_seed(0)
    angles = 2 * torch.pi * torch.rand(_SAMPLES, generator=draws)
    ring, noise = torch.stack([angles.cos(), angles.sin()], dim=1), torch.randn(_SAMPLES, 4, generator=draws)
    torch.manual_seed(_SEED)
    generator, critic = (
        nn.Sequential(nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs))
        for inputs, outputs in ((4, 2), (2, 1))
    )
    adam = functools.partial(torch.optim.Adam, lr=1e-3, betas=(0.5, 0.999))
    of_generator, of_critic = adam(generator.parameters()), adam(critic.parameters())
    losses = []
    for indices in _orders():
        real, fake = critic(ring[indices]), critic(generator(noise[indices]).detach())
        loss = (F.softplus(-real).mean() + F.softplus(fake).mean()) / 2
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        fooled = F.softplus(-critic(generator(noise[indices]))).mean()
        of_generator.zero_grad()
        fooled.backward()
        of_generator.step()
        losses += [loss.item(), fooled.item()]
    return losses


_PLAIN: dict[str, Callable[[], list[float]]] = {"regression": _plain_regression, "gan": _plain_gan}


def _recorded(folder: Path) -> list[float]:
    """The losses of each step, the last record of each if it was trained twice."""
    steps = {record["step"]: record for record in records(folder, "step")}
    return [record[name] for record in steps.values() for name in ("loss", "generator_loss") if name in record]


@pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("name", _PLAIN)
def test_losses_of_the_scripts_equal_a_plain_loop(name: str, world_size: int, tmp_path: Path) -> None:
    launched(world_size, _script, name, tmp_path)
    assert _recorded(tmp_path) == pytest.approx(_PLAIN[name](), rel=2e-6)
    launched(1, _script, name, tmp_path)  # which has nothing left to train, and says so
    assert [incident["kind"] for incident in records(tmp_path, "incident")] == ["already_ended"]


@pytest.mark.slow
def test_kills_before_any_step_and_other_world_sizes_repeat_and_skip_no_sample(tmp_path: Path) -> None:
    for rank, world_size, step in [(0, 1, 7), (1, 2, 9), (2, 3, 6), (0, 2, 8)]:
        with pytest.raises(RuntimeError, match="died without a result"):
            launched(world_size, _killed_script, tmp_path, rank, step)
    launched(2, _script, "regression", tmp_path)
    assert _recorded(tmp_path) == pytest.approx(_plain_regression(), rel=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_to_one_rank_saves_and_ends_all_with_the_same_code(number: signal.Signals, tmp_path: Path) -> None:
    ranks = start_ranks(2, f"--folder={tmp_path}", "--epochs=1000", program=(str(_SCRIPTS / "regression.py"),))
    assert ranks[0].stdout is not None
    assert any("epoch 2/" in line for line in ranks[0].stdout)
    ranks[1].send_signal(number)
    said = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [143, 143], said
    [stop] = records(tmp_path, "stop")
    assert (tmp_path / f"step-{stop['step']:08d}" / "manifest.json").is_file()
    assert len(records(tmp_path, "step")) == stop["step"]


def _regression(**settings: Any) -> tuple[Run, nn.Module, torch.optim.Optimizer, TensorDataset]:
    run = Run(seed=2, **settings)
    model = run.wrap(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)))
    points = torch.randn(11, 3, generator=torch.Generator().manual_seed(5))
    return run, model, torch.optim.SGD(model.parameters(), lr=0.1), TensorDataset(points, points[:, :2].exp())


def _variant(what: str) -> list[float]:
    """The weights after two epochs of 4, 4 and 3 samples, of a loss that is written in some way."""
    run, model, optimizer, dataset = _regression()
    micro_batches = 3 if what == "micro-batches" else 1

    def collate(samples: list[tuple[Tensor, Tensor]]) -> Any:
        x, y = (torch.stack(column) for column in zip(*samples, strict=True))
        return {"x": x, "deep": ([y], "a word")}

    def mean(batch: Any) -> Any:
        error = model(batch["x"]) - batch["deep"][0][0]
        if what == "each":
            return error.square().mean(dim=1)
        if what == "weights":
            heavy = (batch["x"][:, 0] > 0) * 2.0 + 1
            return (heavy * error.square().sum(dim=1)).sum(), 2 * heavy.sum()
        return error.square().mean()

    def contrastive(batch: Any) -> Tensor:
        ours, theirs = run.gather(model(batch["x"])), run.gather(batch["deep"][0][0])
        return F.cross_entropy(ours @ theirs.T, torch.arange(len(ours)))

    for _ in run.epochs(2):
        for batch in run.batches(dataset, 4, micro_batches=micro_batches, collate=collate):
            if what == "contrastive":
                run.step(contrastive, batch, optimizer, split=False)
            elif what == "by hand":
                run.backward(mean(batch))
                run.apply(optimizer)
            else:
                run.step(mean, batch, optimizer)
    return [x for param in model.parameters() for x in param.flatten().tolist()]


@functools.cache
def _alone(what: str) -> list[float]:
    return launched(1, _variant, what)[0]


@pytest.mark.parametrize("what", ["mean", "each", "weights", "micro-batches", "by hand", "contrastive"])
def test_a_loss_written_in_any_way_trains_the_same_on_any_number_of_processes(what: str) -> None:
    for weights in launched(3, _variant, what):  # of four samples the ranks have 2, 1 and 1
        assert weights == pytest.approx(_alone(what), rel=1e-5, abs=1e-6)
    if what in ("each", "micro-batches", "by hand"):
        assert _alone(what) == pytest.approx(_alone("mean"), rel=1e-5, abs=1e-6)


def _projected() -> list[float]:
    """PCGrad by hand: two losses whose gradients are made orthogonal where they conflict."""
    run, model, _, dataset = _regression()
    optimizers = {param: torch.optim.SGD([param], lr=0.1) for param in model.parameters()}
    for _ in run.epochs(1):
        for x, y in run.batches(dataset, 4):
            found = []
            for column in (0, 1):
                run.backward((model(x)[:, column] - y[:, column]).square().mean())
                found.append([param.grad.clone() for param in model.parameters() if param.grad is not None])
                model.zero_grad()
            one, two = (torch.cat([part.flatten() for part in parts]) for parts in found)
            share = min(0.0, float(one @ two)) / float(two @ two)
            for param, first, second in zip(model.parameters(), *found, strict=True):
                param.grad = first - share * second
            norms = [param.grad.norm() for param in optimizers if param.grad is not None]
            assert norms == [run.apply(each, clip_norm=0.5).grad_norm for each in optimizers.values()]
    return [x for param in model.parameters() for x in param.flatten().tolist()]


def test_gradients_made_by_hand_are_the_same_on_any_number_of_processes() -> None:
    alone, weights = (launched(world_size, _projected)[0] for world_size in (1, 3))
    assert weights == pytest.approx(alone, rel=1e-5, abs=1e-6)


def _left_at(folder: Path, step: int) -> int:
    run, model, optimizer, dataset = _regression(checkpoint_dir=folder, run_dir=folder, resume="auto")
    run.restore(model=model, optimizer=optimizer)
    count = torch.ones(())
    for _ in run.epochs(2):
        held = run.batches(dataset, 4)
        for batch in held:
            run.step(lambda b: F.mse_loss(model(b[0]), b[1]), batch, optimizer)
            values: list[tuple[str, Any]] = [("own", run.rank), ("count", count)]
            run.record(**dict(values[:: 1 - 2 * run.rank]))
            count += 1  # which no record must notice
            if run.steps_done + 1 == step:
                break
        if run.steps_done + 1 == step:
            run.end()
            break
        run.record(loss=2.0)
    return run.steps_done


def test_a_run_that_is_ended_early_after_a_step_resumes_to_the_same_bits(tmp_path: Path) -> None:
    assert [launched(2, _left_at, tmp_path / "b", step) for step in (5, 0)] == [[5, 5], [6, 6]]
    assert launched(2, _left_at, tmp_path / "a", 0) == [6, 6]
    assert records(tmp_path / "a", "end")[-1]["weights_sha256"] == records(tmp_path / "b", "end")[-1]["weights_sha256"]
    recorded = [(record["epoch"], record["step"], record["own"]) for record in records(tmp_path / "b", "step")]
    third = pytest.approx(1 / 3)
    assert recorded == [(1, 1, 0.5), (1, 2, 0.5), (1, 3, third), (2, 4, 0.5), (2, 5, 0.5), (2, 6, third)]
    assert [record["count"] for record in records(tmp_path / "b", "step")] == [1, 2, 3, 4, 5, 1]


def _stopped_in_an_evaluation(folder: Path, left_at: int) -> tuple[int, int]:
    run, model, optimizer, dataset = _regression(checkpoint_dir=folder)
    run.restore(model=model, optimizer=optimizer)
    steps = 0
    with suppress(Stopped):
        for _ in run.epochs(2):
            for batch in run.batches(dataset, 4):
                run.step(lambda b: F.mse_loss(model(b[0]), b[1]), batch, optimizer)
                steps += 1
                if steps == 2:
                    os.kill(os.getpid(), signal.SIGTERM)
                if steps == left_at:
                    break
                run.evaluate(lambda b: {"error": F.mse_loss(model(b[0]), b[1])}, dataset, 1)
            run.evaluate(lambda b: {"error": F.mse_loss(model(b[0]), b[1])}, dataset, 1)
    return steps, run.steps_done


@pytest.mark.parametrize("left_at", [0, 2])
def test_a_signal_in_an_evaluation_saves_no_half_counted_step(left_at: int, tmp_path: Path) -> None:
    ((trained, counted),) = launched(1, _stopped_in_an_evaluation, tmp_path, left_at)
    assert 0 < counted == trained - bool(left_at) < 6


def _misused(what: str, folder: Path) -> str:
    run, model, optimizer, dataset = _regression(**({"checkpoint_dir": folder} if "restore" in what else {}))
    loss = lambda b: F.mse_loss(model(b[0]), b[1])  # noqa: E731
    if what == "cut":
        loss = lambda b: F.mse_loss(run.gather(model(b[0])), run.gather(b[1]))  # noqa: E731
    try:
        if what == "restore the optimizer":
            run.restore(optimizer=optimizer)
        if what == "outside":
            for _ in run.batches(dataset, 4):
                break
            run.step(loss, (torch.ones(1, 3), torch.ones(1, 2)), optimizer)
        held = run.batches(dataset, 4, micro_batches=2 if "cut" in what else 1)
        for _ in run.epochs(2 if what == "used up" else 1):
            for batch in held:
                if what == "unwrapped":
                    optimizer = torch.optim.SGD(nn.Linear(3, 1).parameters(), lr=0.1)
                if what == "gather":
                    run.evaluate(lambda b: {"rows": run.gather(b[0]).mean()}, dataset, 4)
                if what == "second Run after a cut":
                    with pytest.raises(train.UserError, match="cuts it"):
                        run.step(lambda b: run.gather(b[0]).mean(), batch, optimizer)
                    run.gather(batch[0])
                    Run()
                if what == "record":
                    run.record(one=1.0, time=2.0, loss=3.0)
                if what == "side by side":
                    beside = run.batches(dataset, 4)
                    next(beside)
                if what == "no update":
                    run.backward(F.mse_loss(model(batch[0]), batch[1]))
                    continue
                if what == "uncut":
                    batch = [*batch, torch.ones(9, 9)]
                run.step((lambda b: model(b[0])) if what == "no mean" else loss, batch, optimizer)
            if what == "no values":
                assert run.evaluate(lambda b: {"two": 2.0, "three": (6.0, 2)}, dataset, 4) == {"two": 2, "three": 3}
                run.evaluate(lambda b: {"error": model(b[0]) - b[1]}, dataset, 4)
            if what in ("other data", "changed data"):
                other = TensorDataset(torch.ones(3, 3)) if what == "other data" else dataset
                other.tensors = (torch.ones(3, 3),)
                for _ in run.batches(other, 4):
                    pass
        run.record(one=1.0)
    except train.UserError as error:
        assert model.training
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("outside", "run.step() belongs into a loop over run.batches()"),
        ("unwrapped", "2 of 2 parameters of the optimizer belong to no model that run.wrap() has returned"),
        ("no mean", "returned a tensor of shape (4, 2) for 4 samples: return the mean"),
        ("no values", "run.evaluate() returned a tensor of shape (4, 2) as error for 4 samples: return the mean"),
        ("cut", "run.gather() needs the whole batch, and run.step() cuts it: give split=False"),
        ("gather", "run.gather() belongs into a loop over run.batches(), not into run.evaluate(), whose metrics= gets"),
        ("uncut", "a batch of 4 samples holds a tensor of shape (9, 9), which cannot be cut"),
        ("record", "run.record(): loss, time is a name that the record uses: choose another one"),
        ("second Run after a cut", "Run() connects the processes, but they are connected already: make one Run in a"),
        ("late", "run.record() belongs into the loop over run.epochs()"),
        ("used up", "an epoch ended without a new loop over run.batches(): nothing was trained"),
        ("restore", "checkpoint_dir is given, but run.restore() has not said"),
        ("restore the optimizer", "run.restore() lacks a model that run.wrap() has returned: no checkpoint would have"),
        ("side by side", "run.batches(): another loop over batches has begun; a run has one training set"),
        ("no update", "run.backward() without run.apply() after it in the same batch"),
        ("changed data", "run.batches(): num_samples was 11 and is 3"),
        ("other data", "run.batches(): num_samples was 11 and is 3, but a run counts the steps of one training set"),
    ],
)
def test_misuse_is_refused_in_words(what: str, says: str, tmp_path: Path) -> None:
    assert says in launched(1, _misused, what, tmp_path)[0]


def _wrong_setting() -> str:
    with pytest.raises(train.UserError) as raised:
        Run(precison="bf16", lr=0.1) if os.environ["RANK"] == "1" else Run(precison="bf16")
    return str(raised.value)


def test_wrong_settings_are_refused_by_name() -> None:
    unknown, classifier = launched(2, _wrong_setting)
    assert 'precison: unknown key; did you mean "precision"?' in unknown
    assert "lr: only `python -m train` has this setting" in classifier


def _examples() -> list[str]:
    """The public names that have no example, and the examples that fail."""
    wrong, namespace = list[str](), dict[str, Any]()
    public = [name for name in train.__all__ if name != "__version__"]
    progress.say = lambda text: None  # an example's output is compared
    for name in sorted(public, key=lambda name: name != "Run"):  # Run's example connects
        found = [(name, getattr(train, name))]
        if name == "Run":
            bases = {key: value for base in Run.__mro__ for key, value in vars(base).items() if callable(value)}
            found += [(key, getattr(Run, key)) for key in bases if not key.startswith("_")]
        for label, thing in found:
            examples = doctest.DocTestParser().get_doctest(thing.__doc__ or "", namespace, label, None, None)
            examples.globs = namespace  # not a copy: later examples use Run's
            runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
            namespace |= {name: getattr(train, name) for name in public}
            runner.run(examples, out=wrong.append, clear_globs=False)
            if not examples.examples and thing in map(train.__dict__.get, public):
                wrong.append(f"{label} has no example")
    return wrong


def test_the_examples_of_all_public_names_run() -> None:
    assert launched(1, _examples) == [[]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code", "reported"),
    [
        ("1 / (run.steps_done != 7)", 1, "saved the last complete step, 7"),
        ("if run.steps_done == 14: break", 0, "nor saved: call run.end() on all ranks before `break`"),
    ],
)
def test_an_end_by_an_uncaught_error_or_break_is_reported(line: str, code: int, reported: str, tmp_path: Path) -> None:
    program, before = tmp_path / "program.py", "    run.record(" if "break" in line else "        run.step("
    source = (_SCRIPTS / "regression.py").read_text()
    program.write_text(source.replace(before, f"{before[: -len(before.lstrip())]}{line}\n{before}"))
    ranks = start_ranks(2, f"--folder={tmp_path}", program=(str(program),))
    said = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [code, code]
    assert ("ZeroDivisionError" in said[0][1]) == (code == 1) and reported in said[0][0], said
