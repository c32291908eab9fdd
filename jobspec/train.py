"""The package train, for a program that is called train.py or lies beside one: `from jobspec.train import Run`.

There `from train import Run` would find that file.  Loaded by its place, our package is `train` in this process.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any


def _load() -> ModuleType:
    loaded = sys.modules.get("train")
    place = Path(__file__).resolve().parent.parent / "train"
    if loaded is not None and loaded.__file__ == str(place / "__init__.py"):
        return loaded
    spec = spec_from_file_location("train", place / "__init__.py", submodule_search_locations=[str(place)])
    assert spec is not None and spec.loader is not None
    package = sys.modules["train"] = module_from_spec(spec)
    spec.loader.exec_module(package)
    return package


def __getattr__(name: str) -> Any:
    return getattr(_PACKAGE, name)


_PACKAGE = _load()
