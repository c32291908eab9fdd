"""Each process gets a device, and two that got the same one are named before NCCL meets them."""

import pytest
import torch

from tests.ranks import run_ranks
from train.errors import SharedError, UserError
from train.world import placement
from train.world.environment import World


def _world(local_rank: int) -> World:
    return World(rank=local_rank, world_size=4, local_rank=local_rank, local_world_size=4, launcher="torchrun")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    return monkeypatch


def test_one_visible_gpu_is_the_one_that_the_site_has_bound(gpus: pytest.MonkeyPatch) -> None:
    gpus.setattr(torch.cuda, "device_count", lambda: 1)
    assert placement.pick_device(_world(1), "auto") == torch.device("cuda", 0)


def test_of_several_visible_gpus_each_rank_takes_its_own_and_too_few_are_refused(gpus: pytest.MonkeyPatch) -> None:
    gpus.setattr(torch.cuda, "device_count", lambda: 3)
    assert placement.pick_device(_world(2), "cuda") == torch.device("cuda", 2)
    with pytest.raises(UserError, match="LOCAL_RANK is 3 but torch sees 3 CUDA devices"):
        placement.pick_device(_world(3), "cuda")


def test_ranks_that_share_a_gpu_are_named_with_it() -> None:
    with pytest.raises(SharedError) as refused:
        placement.refuse_shared_devices([("a", "GPU-1"), ("b", "GPU-2"), ("a", "GPU-1"), ("b", "GPU-2")])
    assert "ranks 0, 2 all use GPU GPU-1 of a; ranks 1, 3 all use GPU GPU-2 of b" in str(refused.value)


def test_other_gpus_other_slices_and_cpus_are_not_shared() -> None:
    placement.refuse_shared_devices([("a", "GPU-1"), ("a", "GPU-2"), ("b", "GPU-3")])
    placement.refuse_shared_devices([("a", "MIG-1"), ("a", "MIG-2")])
    placement.refuse_shared_devices([("a", None), ("a", None), ("b", None)])


class _Properties:
    uuid = "4f1b"


@pytest.mark.parametrize(
    ("name", "visible", "identity"),
    [
        ("NVIDIA H100", "0", "4f1b"),
        ("NVIDIA H100 MIG 1g.10gb", "MIG-77", "MIG-77"),
        ("NVIDIA H100 MIG 1g.10gb", "0", None),
    ],
)
def test_a_mig_slice_is_known_by_its_own_uuid(
    name: str, visible: str, identity: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: _Properties)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("NCCL_HOSTID", "node-7")
    assert placement.device_identity(torch.device("cuda", 0)) == ("node-7", identity)


def _on_other_devices(world: World) -> str:
    # The kind of device is a name here: rank 1 has another one, as where no GPU is found on one node.
    try:
        placement.where_ranks_are(world, torch.device("meta" if world.rank == 1 else "cpu"))
    except SharedError as error:
        return str(error)
    return "no error"


def test_a_rank_that_computes_on_another_kind_of_device_is_named_at_the_start() -> None:
    assert {text.partition(". ")[0] for text in run_ranks(3, _on_other_devices)} == {
        "the ranks compute on different devices: cpu on rank 0, 2; meta on rank 1"
    }
