"""Which nodes may stand in a region's body.

Nodes are classified before anything is matched: LEGAL nodes may be outlined, ILLEGAL ones stay
where they are and end a region, INVISIBLE ones (inputs, attributes) are no operators and are
passed over.  A node is legal only if it is known to be harmless; every refusal has a reason.

The classes answer three questions about each node:

- is its target one of torch's pure tensor operators (``operator_class``)?
- does it draw random numbers (``draws_random_numbers``)?  Such a node is never outlined: its
  index in the stream of random numbers, and under Inductor its seed, are those of the flat graph.
- does it write, or have an effect on, one of its operands (``written_operands``)?
"""

from __future__ import annotations

import enum

import torch
import torch.fx


Node = torch.fx.Node


class IllegalReason(enum.Enum):
    """Why a node may not be in a region."""

    UNKNOWN_TARGET = "its target is not one of torch's pure tensor operators"
    NO_RESULT = "it is run for an effect that is not known: no result, and nothing written"
    RANDOM = "it draws random numbers"
    UNKEYABLE = "it cannot be keyed"
    NOT_A_TENSOR_OR_SIZE = "its result is neither a tensor nor a size, nor a tuple of them"
    OTHER_STATE = "it runs under another autocast or kernel choice than the frame began with"
    WRITES_A_LIST = "it writes to tensors in a list, which functionalization does not find in a body"
    BROKEN_SPAN = "it is part of a whole (a written value's life, a vmap) that no region can hold"
    DIFFERENTIATED_IN_GRAPH = "a gradient that the program itself takes goes through it"
