"""What all tests share: golden files, real data, and the number of examples that hypothesis tries."""

import functools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import warm
from tests.tables import Case, update

try:
    from hypothesis import settings
except ImportError:
    pass  # an image for training may lack it: the files that use it fail there, and all others run
else:
    settings.register_profile("default", max_examples=100, deadline=None)
    settings.register_profile("fuzz", max_examples=10_000, deadline=None)
    settings.load_profile("default")  # --hypothesis-profile=fuzz takes the other one

# Files whose tests take longest, mostly because they start many processes: `make test` leaves them out.
_SLOW_FILES = """
    benchmarks/test_benchmarks jobspec/test_rendezvous_timeout jobspec/test_slurm_preemption jobspec/test_ssh
    jobspec/test_ssh_faults jobspec/test_torchrun_parser jobspec/test_watch train/checkpoints/test_changed_data
    train/checkpoints/test_interrupted_save train/checkpoints/test_resume train/checkpoints/test_transfer
    train/collectives/test_missing_ranks train/cpu/test_shared_memory train/data/test_workers
    train/ddp/test_wrapper train/loop/test_export train/loop/test_finished_run
    train/loop/test_interrupt train/loop/test_nonfinite train/loop/test_numerics train/loop/test_out_of_memory
    train/loop/test_preemption train/loop/test_runs_on_a_gpu train/loop/test_techniques train/loop/test_watchdog
    train/records/test_observer train/records/test_profile train/records/test_report
    train/records/test_tensorboard train/sync/test_sync train/test_check_loop train/test_doctor train/test_mistakes
    train/test_run_data train/world/test_failure train/world/test_local train/world/test_owner test_packaging
"""
_SLOW = tuple(f"{name}.py" for name in _SLOW_FILES.split())
# Single tests that take seconds, where a quicker one proves nearly the same.
_SLOW_TESTS = (
    "test_a_program_that_python_does_not_run_gets_every_argument[srun]",
    "test_a_program_that_python_does_not_run_gets_every_argument[torchrun]",
    "test_a_reduction_through_shared_memory_that_never_completes_names_bucket_parameters_and_missing_rank",
    "test_after_many_fast_steps_a_signal_is_heard_by_all_within_32_steps",
    "test_all_targets_agree_with_each_other_and_with_explain",
    "test_every_parameter_gets_a_gradient[gpt-shape0]",
    "test_public_names_of_train_are_loaded_on_first_use",
    "test_the_loss_of_each_step_equals_one_process[mnist_bn in micro-batches-2-custom_ddp]",
)
# Of these files the variants over the network: the reducer is the same, and tests/train/sync runs over it, too.
_SLOW_OVER_NETWORK = ("train/ddp/test_backward.py", "train/ddp/test_buckets.py", "train/ddp/test_failed_backward.py")


# Files whose slow tests train for minutes: `make test-all` runs them last, as `make e2e-train`.
_LONG_FILES = """
    train/checkpoints/test_sharded train/loop/test_out_of_memory train/loop/test_runs_on_a_gpu
    train/loop/test_techniques train/strategies/test_fsdp train/strategies/test_pipeline
"""
_LONG = tuple(f"{name}.py" for name in _LONG_FILES.split())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        file = item.path.as_posix()
        over_network = file.endswith(_SLOW_OVER_NETWORK) and "network" in item.name
        if file.endswith(_SLOW) or item.nodeid.endswith(_SLOW_TESTS) or over_network:
            item.add_marker(pytest.mark.slow)
        if file.endswith(_LONG) and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.long)
        if item.get_closest_marker("cuda") and not _sees_cuda():
            reason = "torch sees no CUDA device: run `pytest -m cuda` on a machine with a GPU"
            item.add_marker(pytest.mark.skip(reason=reason))


@functools.cache
def _sees_cuda() -> bool:
    import torch  # here: most tests of jobspec need no torch

    return torch.cuda.is_available()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write the golden files anew")
    parser.addoption("--seed", type=int, default=0, help="draws the settings of tests/train/test_oracle.py")


def pytest_configure() -> None:
    """Let Ctrl-C and SIGHUP reach what tests start: a background and nohup ignore them, for their children, too."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.hookimpl(optionalhook=True)  # pytest refuses to start without xdist otherwise
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """The whole suite runs on several processes; what the command line names runs in this one, as a debugger needs."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return min(4, os.cpu_count() or 1) if whole else 0


@pytest.fixture(autouse=True)
def only_tests_marked_cuda_see_gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the GPUs from all other tests: their ranks would meet on a machine's only one, and be refused."""
    if request.node.get_closest_marker("cuda") is None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(autouse=True)
def messages_name_settings_as_run_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier test trained as `python -m train` would, in this process, changes no later message."""
    monkeypatch.setattr("train.config._named_as_flags", False)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """`golden(file, text)` fails unless the file holds exactly the text.  A missing file is a failure, too."""
    update = bool(request.config.getoption("--update"))

    def compare(file: Path, text: str) -> None:
        if update:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode())
        assert file.exists(), f"{file.name} is missing; pytest --update writes it"
        assert text == file.read_bytes().decode()

    return compare


@pytest.fixture
def golden_cell(request: pytest.FixtureRequest) -> Callable[[Case, str, str], None]:
    """`golden_cell(case, cell, text)` is the same for a cell of a table."""
    updates = bool(request.config.getoption("--update"))

    def compare(case: Case, cell: str, text: str) -> None:
        if updates:
            update(case, cell, text)
        else:
            assert text == case.cells[cell]

    return compare


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """A folder with a torchrun and a python3 that start in milliseconds with torch."""
    with warm.started() as folder:
        yield folder


@pytest.fixture(scope="module")
def python(programs: Path) -> str:
    return str(programs / "python3")


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder that holds MNIST/raw and FashionMNIST/raw: $DATA_ROOT, or shared/data beside the repository."""
    root = Path(os.environ.get("DATA_ROOT") or Path(__file__).parents[2] / "shared" / "data")
    absent = [name for name in ("MNIST", "FashionMNIST") if not (root / name / "raw").is_dir()]
    if absent:
        pytest.skip(f"no real data: {' and '.join(absent)} not found; DATA_ROOT=FOLDER says where they are")
    return root


@pytest.fixture(scope="session")
def schemas() -> Path:
    """The folder with strict JSON Schemas of foreign kinds: $SCHEMAS, or shared/schemas beside the repository."""
    root = Path(os.environ.get("SCHEMAS") or Path(__file__).parents[2] / "shared" / "schemas")
    if not root.is_dir():
        pytest.skip("no schemas of the operators' kinds found; SCHEMAS=FOLDER says where they are")
    return root
