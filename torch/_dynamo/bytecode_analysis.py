"""Overlay of torch._dynamo.bytecode_analysis: instructions are numbered in one step.

What a compiled frame passes to its graph is several instructions for each input, and they are numbered five times.
"""

from __future__ import annotations

from typing import Any

from torch_regions.overlay import replaces, stock


@replaces
def get_indexof(insts: list[Any]) -> dict[Any, int]:
    places = dict(zip(insts, range(len(insts))))
    # Stock says which instruction is there twice.
    return places if len(places) == len(insts) else stock("torch._dynamo.bytecode_analysis:get_indexof")(insts)
