"""What differs between the fingerprint of a call and those of the entries of its function.

For reports only: nothing is decided by it. A key that this file does not know is named, not explained.
"""

from __future__ import annotations

import types
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch._dynamo.regions.keys import Same
from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.trace.expressions import constant_text, key_text
from torch._dynamo.regions.trace.stored_weights import STORED


# The parts of a bucket, in order, after the function: trace/call.py.
_PARTS = ("arguments", "global state", "what the frame has bound to globals and cells")
# The first parts of a key of global state: torch/utils/_ambient_state.py.
_STATES = (
    "grad mode",
    "inference mode",
    "modes",
    "function transforms",
    "autocast",
    "autocast's cache",
    "attention kernels",
)
# The parts of a tensor's key, by fingerprint.py and tensor_key in keys.py.
_OF_TENSOR = (
    "class",
    "which arguments are the same",
    "which arguments share memory",
    "",
    "what is known of it",
    "grad_fn",
)
_METADATA = ("shape", "stride", "storage offset", "dtype", "device", "requires_grad", "inference")
_COMPARED = (bool, int, str, bytes, types.CodeType, torch.dtype, torch.device, torch.layout, torch.memory_format, Same)
_CONSTANTS = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)


def arguments_differ(bucket: tuple[Any, ...], earlier: Sequence[tuple[Any, ...]]) -> CannotReuse:
    """Why a call whose fingerprint is ``bucket`` has no entry, by the ``earlier`` bucket that is most like it."""
    # The one that agrees in most, the latest of them.
    like = max(earlier, key=lambda old: (sum(map(_same, bucket, old)), _alike(bucket[1], old[1])), default=None)
    return CannotReuse(ReuseMissReason.ARGUMENTS_DIFFER, "" if like is None else _difference(bucket, like))


def _difference(new: tuple[Any, ...], old: tuple[Any, ...]) -> str:
    (function, *ours), (_, *theirs) = new, old
    for what, a, b in zip(_PARTS, ours, theirs):
        if _same(a, b):
            continue
        if what == "arguments":
            return _of_arguments(function, a, b)
        if what == "global state":
            return _of_state(a, b)
        return f"{what} differs"
    return ""


def _same(a: Any, b: Any) -> bool:
    """Whether two parts of a key are equal. The ``__eq__`` of a class of the program is not run."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return a is b or (type(a) is type(b) and type(a) in _COMPARED and a == b)


def _alike(new: Any, old: Any) -> int:
    """In how many arguments two keys agree, or have a tensor each."""
    pairs = zip(new, old) if isinstance(new, tuple) and isinstance(old, tuple) else ()
    return sum(_same(a, b) or (_is_tensor(a) and _is_tensor(b)) for a, b in pairs)


def _of_arguments(function: Any, new: Any, old: Any) -> str:
    (stored, new), (before, old) = map(_without_stored, (new, old))
    if not _same(stored, before):
        return f"{STORED} differ"
    if not (isinstance(new, tuple) and isinstance(old, tuple)) or not _same(new[0], old[0]):
        return "the function called, or what it closes over, differs"
    if "of the user" in (new[0], old[0]) or "under options" in (new[0], old[0]):
        return "the key or the options of the mark differ"
    if len(new) != len(old):
        return f"{len(new) - 1} arguments, {len(old) - 1} in the earlier call"
    number, a, b = next((i, a, b) for i, (a, b) in enumerate(zip(new, old)) if not _same(a, b))
    name = _name(function, number - 1)
    if len(a) == len(b) == 2 and isinstance(a[0], str) and a[0] == b[0] and isinstance(a[1], tuple):
        name, a, b = f"argument {a[0]!r}", a[1], b[1]  # given by name
    how = _of_tensors(a, b) if _is_tensor(a) and _is_tensor(b) else _of_constants(a, b)
    return f"{name}{how}"


def _without_stored(key: Any) -> tuple[Any, Any]:
    """What ``key`` says of weights that the frame has stored, and the rest."""
    has = isinstance(key, tuple) and len(key) == 3 and key[0] is STORED
    return (key[1], key[2]) if has else ((), key)


def _name(function: Any, number: int) -> str:
    names = function.co_varnames[: function.co_argcount] if isinstance(function, types.CodeType) else ()
    return f"argument {names[number]!r}" if number < len(names) else f"argument {number + 1}"


def _is_tensor(key: Any) -> bool:
    return isinstance(key, tuple) and len(key) == len(_OF_TENSOR) and len(key[3]) == len(_METADATA)


def _of_tensors(new: tuple[Any, ...], old: tuple[Any, ...]) -> str:
    for what, a, b in zip(_METADATA, new[3], old[3]):
        if not _same(a, b):
            return f": {what} {key_text(a)}, {key_text(b)} in the earlier call"
    # The others follow from this one: what is a leaf, whose memory it is.
    what = next(what for what, a, b in zip(_OF_TENSOR, new, old) if not _same(a, b))
    return f": {what} differs"


def _of_constants(new: Any, old: Any) -> str:
    if all(isinstance(key, tuple) and len(key) == 2 and key[0] in _CONSTANTS for key in (new, old)):
        return f": {constant_text(new)}, {constant_text(old)} in the earlier call"
    return " is of another kind, or holds something else"


def _of_state(new: tuple[Hashable, ...], old: tuple[Hashable, ...]) -> str:
    (ours, _), (theirs, _) = new, old
    if _same(ours, theirs) or not (isinstance(ours, tuple) and isinstance(theirs, tuple)):
        return "the symbols of the frame differ"
    names = (*_STATES, *["a setting of torch"] * len(ours))
    return "in another " + next(name for name, a, b in zip(names, ours, theirs) if not _same(a, b))
