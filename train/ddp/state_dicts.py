"""State dicts of a wrapper, with the keys of the module inside it."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from train.errors import UserError


class BareState(nn.Module):
    """A wrapper with the state dict of its `module`, even as a part of a larger module."""

    module: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(_load_as_part)  # type: ignore[no-untyped-call]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state dict of the bare module."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load into the bare module the state of a bare module, or of native DDP, which puts `module.` into its keys.

        Raises UserError for assign=True, which would replace the hooked parameters.
        """
        _refuse_assign(assign)
        if _is_of_native_ddp(state_dict, self.module):
            state_dict = copy.deepcopy(state_dict, {id(value): value for value in state_dict.values()})
            consume_prefix_in_state_dict_if_present(state_dict, "module.")
        return self.module.load_state_dict(state_dict, strict)


def _load_as_part(part: BareState, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *_: object) -> None:
    """Put `module.` into the keys before a larger module loads, because torch looks for such keys."""
    _refuse_assign(metadata.get("assign_to_params_buffers", False))
    bare = {key.removeprefix(prefix): state.pop(key) for key in list(state) if key.startswith(prefix)}
    between = "" if _is_of_native_ddp(bare, part.module) else "module."
    state.update({f"{prefix}{between}{key}": value for key, value in bare.items()})


def _is_of_native_ddp(keys: Collection[str], module: nn.Module) -> bool:
    return all(key.startswith("module.") for key in keys) and not set(keys) <= module.state_dict().keys()


def _refuse_assign(assign: bool) -> None:
    if assign:
        raise UserError("load_state_dict(assign=True) replaces parameters: call it before CustomDDP is made")
