"""Instructions are numbered as stock numbers them."""

from __future__ import annotations

import pytest
from torch._dynamo.bytecode_analysis import get_indexof
from torch._dynamo.bytecode_transformation import cleaned_instructions

from torch_regions.overlay import stock


@pytest.fixture(autouse=True)
def _with_regions(with_regions):
    """What is tested here runs while a program with regions is compiled."""


def looping(values):
    total = 0
    for value in values:
        try:
            total += value
        except TypeError:
            continue
    return total


def test_instructions_are_numbered_in_their_order():
    instructions = cleaned_instructions(looping.__code__)
    places = get_indexof(instructions)
    assert places == stock("torch._dynamo.bytecode_analysis:get_indexof")(instructions)
    assert [places[instruction] for instruction in instructions] == list(range(len(instructions)))


def test_an_instruction_that_is_there_twice_is_an_error():
    instructions = cleaned_instructions(looping.__code__)
    with pytest.raises(AssertionError):
        get_indexof([*instructions, instructions[3]])
