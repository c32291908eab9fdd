"""State dicts of a wrapper, with the keys of the module inside it."""

from __future__ import annotations

from typing import Any

from torch import nn

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
        """Load into the bare module.  Raises UserError for assign=True, which would replace the hooked parameters."""
        _refuse_assign(assign)
        return self.module.load_state_dict(state_dict, strict)


def _load_as_part(_: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *__: object) -> None:
    """Put `module.` into the keys before a larger module loads, because torch looks for such keys."""
    _refuse_assign(metadata.get("assign_to_params_buffers", False))
    bare = {key: state.pop(key) for key in list(state) if key.startswith(prefix)}
    state.update({f"{prefix}module.{key.removeprefix(prefix)}": value for key, value in bare.items()})


def _refuse_assign(assign: bool) -> None:
    if assign:
        raise UserError("load_state_dict(assign=True) replaces parameters: call it before CustomDDP is made")
