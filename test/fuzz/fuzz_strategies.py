"""Draws whole programs.  Smaller ones come first in each choice, so that shrinking leads to them."""

from __future__ import annotations

from fuzz_kinds import KINDS
from fuzz_parts import BETWEEN, CHANGES, PARTS, RESULTS
from fuzz_program import Between, Change, Program, Thing, Use
from hypothesis import strategies as st


# One program of six returns more than one value from what is marked.
_FORMS = (*(("forward",),) * 3, *(("function", "method", "helper"),) * 2, tuple(sorted(RESULTS)))
CONTAINERS = (
    "module_list",
    "module_list",
    "module_list",
    "list",
    "dict",
    "module_dict",
    "tuple",
    "sequential",
    "attributes",
    "once",
)
HELD = ("attribute", "attribute", "attribute", "item", "key", "inner", "module", "pair")
# A layer's own attribute half of the time; else another name of what the layer may also hold.
THROUGH = ("self", "self", "self", "self", "global", "cell", "default", "root")
# What a change of the state of a layer needs to be seen.
_NEEDS = {
    "constant": "constant",
    "flag": "flag",
    "word": "word",
    "unset": "unset",
    "buffer": "buffer",
    "buffer_shape": "buffer",
    "buffer_double": "buffer",
    "buffer_requires_grad": "asks_requires_grad",
    "tie_buffer": "buffer_write",
    "reads_buffer": "average",
    "norm_call": "batch_norm",
    "shared_norm": "batch_norm",
    "reads_statistics": "batch_norm",
    "tie_statistics": "batch_norm",
    "norm_eval": "batch_norm",
    "no_momentum": "batch_norm",
    "dies": "seen_weakly",
    "all_die": "seen_weakly",
    "class_attribute": "class_attribute",
    "property": "property",
    "own_config": "own_config",
    "own_config_replaced": "own_config",
    "own_list": "own_list",
    "index": "index",
    "integer": "compares_integer",
    "an_order": "compares_integer",
    "element": "get_of_dict",
    "no_element": "get_of_dict",
    "held": "compares_held",
    "all_held": "held_counts",
    "compares_held": "held_is_asked",
    "cell": "own_closure",
    "bumped": "cell_read",
    "hook_renamed": "hook_by_its_name",
    "calls_act": "own_closure",
    "bumps": "cell_read",
    "calls_lin": "hook_with_a_cell",
    "length": "kept",
    "all_lengths": "grows",
    "tie_kept": "grows",
    "kept_requires_grad": "kept",
    "kept_view": "grows_and_asks",
    "compares_lengths": "kept",
    "row": "row_strided",
    "all_rows": "row",
    "given_kept": "argument_is_kept",
    "given_kept_as_it_is": "argument_is_kept",
    "given_anothers": "argument_has",
    "reads_kept": "argument_is_kept",
    "kept_has": "argument_has",
    "keeps_buffer": "buffer_write",
    "eval": "training",
    "whole_eval": "training",
    "write_buffer": "asks_requires_grad",
    "write_buffer_detached": "buffer",
    "buffer_detach": "asks_grad_fn",
    "buffer_grad": "asks_grad",
    "buffer_rebind": "buffer",
    "stores_buffer": "buffer",
    "context_scale": "context_sets",
    "context_dict": "context_list",
    "context_element": "context_element",
    "context_key": "context_key",
    "context_list": "context_list",
    "context_appends": "context_length",
    "context_tensor": "context_is_input",
    "context_computed": "context_tensor",
    "context_written": "context_tensor",
    "context_layer": "context_layer",
    "context_reads": "context_hook",
    "context_other": "context_other",
    "context_other_held": "context_other_held",
    "context_other_scale": "context_other",
    "context_other_appends": "context_other",
    "context_tag": "context_tag",
}
# The guards on words, switches, None and lengths are those that a reuse states itself: Dynamo makes those on numbers and
# tensors where it builds the value.
_BY_VALUE = ("word", "unset", "flag", "own_list", "eval")
# What the model does to a layer's result: another call of the layer returns what it would return without.
_OF_RESULTS = tuple(name for name in BETWEEN if name.startswith("result_") or name.endswith("_of_a_result"))
_KINDS = [*sorted(KINDS), *["switches"] * 4]
# Of parts whose names begin so there are many of one kind.
_MANY = ("named_", "counted_", "asks_", "context_")
_PARTS = [sorted(n for n in PARTS if not n.startswith(_MANY))] * 5
# What asks for autograd state is drawn twice as often as the other kinds of which there are many.
_PARTS += [sorted(n for n in PARTS if n.startswith(prefix)) for prefix in (*_MANY, "asks_")]


@st.composite
def _uses(draw: st.DrawFn, kind: str, most: int, fewest: int) -> tuple[Use, ...]:
    number = draw(st.integers(fewest, most))
    return tuple(
        Use(draw(st.sampled_from(KINDS[kind].uses)), draw(st.sampled_from(THROUGH)), draw(st.integers(0, 1)))
        for _ in range(number)
    )


@st.composite
def _thing(draw: st.DrawFn, layers: int) -> Thing:
    kind = draw(st.sampled_from(_KINDS))
    values = draw(st.sampled_from(((2.0,), (2.0, 3.0), (2.0, 2.0), (2.0, 3.0, 3.0))))
    if kind in ("enum", "torch_function", "dtype"):  # members are one object for each value
        values = tuple((2.0, 3.0, 5.0)[: len(values)])
    shape = draw(st.sampled_from(("all", "all", "alternating", "own", "any")))
    number = len(values)
    pattern = {
        "all": (0,) * layers,
        "alternating": tuple(i % number for i in range(layers)),
        "own": (-1,) * layers,
    }.get(shape) or tuple(draw(st.integers(-1, number - 1)) for _ in range(layers))
    first = Use(draw(st.sampled_from(KINDS[kind].uses)), "self", draw(st.integers(0, 1)))
    uses = (first, *draw(_uses(kind, 2, 0)))
    # The frame reads a shared object by a name of its own as often as not: that ties two sources.
    at_root = draw(st.sampled_from(((), None)))
    held = draw(st.sampled_from(HELD))
    return Thing(kind, values, held, pattern, uses, draw(_uses(kind, 1, 1)) if at_root is None else ())


@st.composite
def _change(draw: st.DrawFn, things: tuple[Thing, ...]) -> Change:
    # What the first two layers hold, tracing guards. The others are where a reuse may forget to.
    i, j = draw(st.sampled_from((2, 3, 1, 2, 0))), draw(st.integers(0, 4))
    if things and draw(st.integers(0, 2)):
        index = draw(st.integers(0, len(things) - 1))
        own = KINDS[things[index].kind].changes
        return Change(draw(st.sampled_from(("replace", "replace_fresh", "rebind", *own))), index, i, j)
    return Change(draw(st.sampled_from(("none", *sorted(CHANGES), *_BY_VALUE * 3))), -1, i, j)


@st.composite
def _between(draw: st.DrawFn, things: tuple[Thing, ...]) -> Between:
    at, j = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    if things and draw(st.booleans()):
        index = draw(st.integers(0, len(things) - 1))
        changes = [c for c in KINDS[things[index].kind].changes if "hook" not in c]
        if things[index].held != "pair":
            changes.append("replace")
        if changes:
            return Between(draw(st.sampled_from(changes)), index, at, j)
    if not draw(st.integers(0, 3)):
        # The result of a call that is traced: of the first, or of the second.
        return Between(draw(st.sampled_from(_OF_RESULTS)), -1, draw(st.sampled_from((1, 2))), j)
    return Between(draw(st.sampled_from(sorted(BETWEEN))), -1, at, j)


def _with_needs(parts: list[str], whats: list[str]) -> tuple[str, ...]:
    """The parts, and what it takes for a change to have something to change."""
    found = list(parts)
    for what in whats:
        need = _NEEDS.get(what)
        if need is not None:
            same_state = [p for p in found if PARTS[p].init and PARTS[p].init == PARTS[need].init]
            if not same_state:
                found.append(need)
    return tuple(dict.fromkeys(found))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    layers = draw(st.sampled_from((3, 4)))
    things = tuple(draw(_thing(layers)) for _ in range(draw(st.sampled_from((0, 1, 1, 1, 2)))))
    between = tuple(draw(_between(things)) for _ in range(draw(st.sampled_from((0, 0, 1, 1, 2)))))
    steps = draw(st.sampled_from((0, 1, 1, 1, 1, 2)))
    changes = tuple(tuple(draw(_change(things)) for _ in range(draw(st.sampled_from((1, 1, 2))))) for _ in range(steps))
    whats = [b.what for b in between if b.thing < 0] + [c.what for step in changes for c in step if c.thing < 0]
    kinds = draw(st.sampled_from((1, 1, 1, 2)))
    parts = tuple(
        _with_needs(
            [draw(st.sampled_from(draw(st.sampled_from(_PARTS)))) for _ in range(draw(st.sampled_from((0, 1, 1, 2))))],
            whats,
        )
        for _ in range(kinds)
    )
    classes = tuple((i % kinds for i in range(layers)) if kinds > 1 else (0,) * layers)
    batches = tuple(draw(st.sampled_from((2, 2, 2, 2, 4))) for _ in range(steps + 1))
    grad = draw(st.sampled_from((True, True, False)))
    return Program(
        draw(st.sampled_from(draw(st.sampled_from(_FORMS)))),
        draw(st.sampled_from(CONTAINERS)),
        classes,
        parts,
        things,
        between,
        changes,
        batches,
        draw(st.booleans()),
        draw(st.booleans()),
        grad,
        draw(st.sampled_from((False, False, False, False, True))),
    )
