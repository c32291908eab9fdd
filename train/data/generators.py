"""The random generators that samples are drawn with: of torch, NumPy and Python, and those that a dataset keeps."""

import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from train.data.shard import seed_of

# Longer ones hold samples, not transforms.
_MOST_ITEMS = 200
_WITHOUT = (str, bytes, int, float, complex, type(None), type, ModuleType, Tensor, np.ndarray, np.dtype)

Generator = torch.Generator | random.Random | np.random.RandomState | np.random.BitGenerator


class Generators:
    """The generators that are seeded for each sample, and restored after each batch.

    Those of the process get the sample's seed.  Each that an owner keeps, in an attribute, a list, a closure or a
    global name of its functions, gets a seed that also depends on its place there.
    """

    def __init__(self, **owners: Any) -> None:
        self._owners = owners
        self._kept: dict[str, Generator] = {}

    def are_new(self) -> bool:
        """Look for the generators, and return True if there are others than before."""
        before, self._kept = self._kept, dict(_found(self._owners))
        return self._kept != before

    def states(self) -> list[Callable[[], object]]:
        """Return what gives each generator the state back that it has now."""
        return [_restoring(each) for each in (*_of_process(), *self._kept.values())]

    def seed(self, *position: int) -> None:
        seed = seed_of(*position)
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        for place, generator in self._kept.items():
            _seed(generator, seed_of(*position, place))


def _of_process() -> tuple[Generator, ...]:
    return torch.default_generator, random.seed.__self__, np.random.mtrand._rand  # type: ignore[attr-defined]


def _seed(generator: Generator, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = type(generator)(seed).state
    else:
        generator.seed(seed)


def _restoring(generator: Any) -> Callable[[], object]:
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    if isinstance(generator, np.random.BitGenerator):
        return partial(setattr, generator, "state", generator.state)
    return partial(generator.set_state, generator.get_state())


def _found(owners: Mapping[str, Any]) -> Iterator[tuple[str, Generator]]:
    """Yield the generators that the owners keep, each once, with its place."""
    seen, left = {id(each) for each in _of_process()}, [*owners.items()][::-1]
    while left:
        place, thing = left.pop()
        if isinstance(thing, _WITHOUT) or id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, random.SystemRandom):
            text = f"{place} is a SystemRandom, whose numbers cannot be repeated: use a random.Random"
            warnings.warn(text, stacklevel=2)  # once, although each epoch looks; perhaps nothing draws from it
            continue
        if isinstance(thing, np.random.Generator):
            thing = thing.bit_generator
        if isinstance(thing, Generator):
            yield place, thing
        else:
            left += reversed([(f"{place}.{name}", part) for name, part in _parts(thing)])


def _parts(thing: Any) -> list[tuple[Any, Any]]:
    if isinstance(thing, dict):
        return [*thing.items()] if len(thing) <= _MOST_ITEMS else []
    if isinstance(thing, list | tuple):
        return [*enumerate(thing)] if len(thing) <= _MOST_ITEMS else []
    if isinstance(thing, MethodType):
        return [("self", thing.__self__), ("function", thing.__func__)]
    if isinstance(thing, partial):
        return [("function", thing.func), ("args", thing.args), ("keywords", thing.keywords)]
    if isinstance(thing, FunctionType):
        cells = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True)
        closed = [(name, cell.cell_contents) for name, cell in cells if cell != CellType()]
        named = [(name, thing.__globals__.get(name)) for name in thing.__code__.co_names]
        # A function of another module, such as a library's, would lead to all of that library.
        ours = [(name, x) for name, x in named if not isinstance(x, FunctionType) or x.__module__ == thing.__module__]
        return closed + ours
    of_classes = [pair for kind in type(thing).__mro__[:-1] for pair in vars(kind).items()]
    own = [*vars(thing).items()] if hasattr(thing, "__dict__") else []
    slots = [name for name, x in of_classes if isinstance(x, MemberDescriptorType) and hasattr(thing, name)]
    own += [(name, getattr(thing, name)) for name in slots]
    return own + [(name, x) for name, x in of_classes if isinstance(x, FunctionType | Generator | np.random.Generator)]
