"""Names that torch.compile, DDP and FSDP put in front of a module's own, taken away again.

torch.compile names what it wraps '_orig_mod', FSDP '_fsdp_wrapped_module', activation checkpointing
'_checkpoint_wrapped_module', each wherever a module was wrapped; DataParallel and DDP 'module', around the whole model.
No loader of a language model knows such names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from core.roles import natural_key, parse_name
from core.tensor_info import TensorInfo

_ANYWHERE = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_WHOLE = "module."


def own_names(names: Sequence[str]) -> dict[str, str]:
    """The names without wrappers, by the given ones; empty where there are none, or two would become one."""
    found = list(names)
    for wrapper in _ANYWHERE:
        found = [name.replace(wrapper, "") for name in found]
    if found and all(name.startswith(_WHOLE) for name in found):
        found = [name.removeprefix(_WHOLE) for name in found]
    if found == list(names) or len(set(found)) != len(names) or not all(found):
        return {}
    return dict(zip(names, found, strict=True))


def renamed(tensors: Sequence[TensorInfo], names: dict[str, str]) -> list[TensorInfo]:
    """The tensors by their new names, with the roles that these have, in natural order."""
    out = []
    for t in tensors:
        name = names[t.name]
        named = parse_name(name, t.shape)
        tied = names.get(t.tied_to, t.tied_to)
        own = replace(t, name=name, tied_to=tied, role=named.role, layer=named.layer)
        out.append(replace(own, expert=named.expert, experts=named.experts))
    return sorted(out, key=lambda t: natural_key(t.name))
