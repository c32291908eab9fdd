"""Sampling over ranks and steps: each sample once an epoch, and a resumed run reads exactly what is left."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ranks import run_ranks
from train.data.sampler import ShardSampler, evaluation_parts
from train.data.shard import epoch_order
from train.errors import UserError
from train.world.environment import World

positions = st.fixed_dictionaries(
    {"size": st.integers(1, 200), "batch_size": st.integers(1, 250), "seed": st.integers(0, 2**32 - 1)}
)


def samplers(size: int, batch_size: int, world_size: int, seed: int = 0, epoch: int = 1) -> list[ShardSampler]:
    """One sampler for each rank, all at the start of `epoch`."""
    ranks = [ShardSampler(size, batch_size, rank, world_size, seed) for rank in range(world_size)]
    for sampler in ranks:
        sampler.set_epoch(epoch)
    return ranks


def steps_of_all_ranks(ranks: Iterable[Iterable[list[int]]]) -> list[list[int]]:
    """For each step what all ranks read together, rank 0 first; fails if ranks have unequal numbers of steps."""
    return [[sample for mine in step for sample in mine] for step in zip(*ranks, strict=True)]


@given(
    size=st.integers(0, 300) | st.sampled_from([9_999, 10_001]),
    batch_size=st.integers(1, 400) | st.just(20_000),
    world_size=st.integers(1, 12),
)
def test_evaluation_reads_each_sample_exactly_once(size: int, batch_size: int, world_size: int) -> None:
    of_ranks = [evaluation_parts(size, batch_size, rank, world_size, world_size)[0] for rank in range(world_size)]
    assert [sample for steps in of_ranks for batch in steps for sample in batch] == list(range(size))
    assert len({len(steps) for steps in of_ranks}) == 1, "all ranks meet after each batch"
    assert all(batch for steps in of_ranks for batch in steps[:-1]), "only the last batch of a rank may be empty"
    assert all(of_ranks[0]), "no batch is empty on all ranks"
    assert max((len(batch) for steps in of_ranks for batch in steps), default=0) <= max(1, batch_size // world_size)


@given(position=positions, world_size=st.integers(1, 12), epoch=st.integers(1, 50))
def test_samples_of_a_step_do_not_depend_on_the_world_size(
    position: dict[str, int], world_size: int, epoch: int
) -> None:
    alone = steps_of_all_ranks(samplers(**position, world_size=1, epoch=epoch))
    together = steps_of_all_ranks(samplers(**position, world_size=world_size, epoch=epoch))
    assert together == alone
    assert [sample for step in alone for sample in step] == epoch_order(position["size"], position["seed"], epoch)
    assert {len(step) for step in alone[:-1]} <= {position["batch_size"]}


@given(position=positions, world_size=st.integers(1, 12), most=st.integers(1, 20), least=st.integers(1, 2))
def test_micro_batches_hold_the_same_samples_on_any_number_of_ranks(
    position: dict[str, int], world_size: int, most: int, least: int
) -> None:
    size, batch_size, seed = position["size"], position["batch_size"], position["seed"]
    alone = ShardSampler(size, batch_size, 0, 1, seed, most, least)
    ranks = [ShardSampler(size, batch_size, rank, world_size, seed, most, least) for rank in range(world_size)]
    for step, (indices, *of_ranks) in enumerate(zip(alone, *ranks, strict=True)):
        parts, whole = [0, *(len(part) for part in alone.parts(step))], len(indices)
        assert len(parts) - 1 == max(1, min(most, whole // least))
        assert sum(parts) == whole and min(parts[1:]) >= min(least, whole)
        read = [iter(of_rank) for of_rank in of_ranks]
        shares = zip(*(rank.shares(step) for rank in ranks), strict=True)
        together = [next(mine) for part in shares for mine, one in zip(read, part, strict=True) for _ in one]
        assert together == indices and not any([*mine] for mine in read)


@given(position=positions, share=st.floats(0, 1), before=st.integers(1, 8), after=st.integers(1, 8))
def test_resume_reads_exactly_the_rest_also_on_another_world_size(
    position: dict[str, int], share: float, before: int, after: int
) -> None:
    whole = [sample for step in steps_of_all_ranks(samplers(**position, world_size=1, epoch=3)) for sample in step]
    assert Counter(whole) == Counter(range(position["size"]))
    interrupted = samplers(**position, world_size=before, epoch=3)
    done = round(share * len(interrupted[0]))
    read = [sample for step in steps_of_all_ranks(interrupted)[:done] for sample in step]
    for sampler in interrupted:
        for _ in range(done):
            sampler.advance()
    saved = interrupted[0].state_dict()
    assert all(sampler.state_dict() == saved for sampler in interrupted), "rank 0's position is everyone's"
    resumed = samplers(**position, world_size=after)
    for sampler in resumed:
        sampler.load_state_dict(saved)
    rest = [sample for step in steps_of_all_ranks(resumed) for sample in step]
    following = epoch_order(position["size"], position["seed"], 4)
    assert rest == whole[len(read) :] or (read == whole and rest == following), "in the order of an uninterrupted run"


def test_a_stream_is_read_in_its_order() -> None:
    assert next(iter(ShardSampler(100, 10, 0, 1, seed=2, in_order=True))) == [*range(10)]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"seed": 2}, "seed was 1 and is 2"),
        ({"num_samples": 101}, "num_samples was 100 and is 101"),
        ({"batch_size": 20}, "batch_size was 10 and is 20"),
        ({"in_order": True}, "in_order was"),
        ({"seed": 2, "batch_size": 30}, "seed was 1 and is 2.*batch_size was 10 and is 30"),
    ],
)
def test_a_position_counted_with_other_values_is_refused_and_names_them(changed: dict[str, Any], says: str) -> None:
    settings: dict[str, Any] = {"num_samples": 100, "batch_size": 10, "rank": 0, "world_size": 1, "seed": 1}
    state = ShardSampler(**settings).state_dict() | {"epoch": 2, "step": 3}
    other = ShardSampler(**settings | changed)
    with pytest.raises(UserError, match=says) as refusal:
        other.load_state_dict(state)
    assert (other.epoch, other.step) == (1, 0), "a refused position changes nothing"
    assert all(f"{word} was" not in str(refusal.value) for word in settings if word not in changed)


@pytest.mark.parametrize(
    ("num_samples", "batch_size", "rank", "world_size"),
    [(9, 4, 3, 2), (9, 4, 2, 2), (9, 4, -1, 2), (9, 4, 0, 0), (9, 0, 0, 2), (9, -4, 0, 2), (-1, 4, 0, 2)],
)
def test_a_rank_outside_of_the_world_or_a_batch_below_one_is_refused(
    num_samples: int, batch_size: int, rank: int, world_size: int
) -> None:
    with pytest.raises(UserError, match=f"rank is {rank}, world_size {world_size}, batch_size {batch_size} and "):
        ShardSampler(num_samples, batch_size, rank, world_size, seed=0)


def test_a_loop_that_only_advances_reads_each_epoch_once_and_a_restart_may_set_the_epoch_again() -> None:
    sampler = ShardSampler(9, 4)
    read = list[int]()
    while sampler.epoch <= 2:
        sampler.set_epoch(sampler.epoch)
        for indices in sampler:
            read += indices
            sampler.advance()
            if (sampler.epoch, sampler.step) == (2, 1):  # as after a restart in the middle
                break
    assert read == epoch_order(9, 0, 1) + epoch_order(9, 0, 2) and len(sampler) == 3
    sampler.set_epoch(4)
    assert (sampler.epoch, sampler.step) == (4, 0)


@pytest.mark.parametrize("read", [1, 2, 3])
def test_a_loader_that_saves_its_iterator_continues_behind_what_it_has_read(read: int) -> None:
    steps, other = iter(ShardSampler(9, 4)), iter(ShardSampler(9, 4))
    for _ in range(read):
        next(steps)
    other.load_state_dict(steps.state_dict())
    following = ShardSampler(9, 4)
    following.set_epoch(2)
    assert [*other] == ([*steps] or [*following])


def _shares(world: World) -> tuple[list[list[int]], str]:
    with pytest.raises(UserError) as refusal:
        iter(ShardSampler(13, 4))
    return [*ShardSampler(11, 4)], str(refusal.value)


def test_ranks_of_a_process_group_share_each_batch_and_too_small_a_batch_is_refused() -> None:
    shares, refusals = zip(*run_ranks(3, _shares), strict=True)
    assert steps_of_all_ranks(shares) == [*ShardSampler(11, 4)]
    assert {*refusals} == {
        "ShardSampler: the last batch of an epoch has 1 of 13 samples, too few for 3 processes: choose another "
        "batch_size than 4"
    }


def _shared_out_again(_: pytest.MonkeyPatch) -> None:
    getattr(ShardSampler(9, 4), "drop_last", None)


def _before_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    next(iter(ShardSampler(9, 4)))


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (_shared_out_again, "would be shared out again"),
        (_before_the_group, "one of 2 processes reads before init_process_group"),
    ],
)
def test_a_use_that_would_lose_samples_is_refused(
    use: Callable[[pytest.MonkeyPatch], None], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=says):
        use(monkeypatch)
