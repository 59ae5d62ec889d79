"""What is known of an operator agrees with the operator's own signature and with what its call does."""

import inspect

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch.fx import operator_facts


def positions(target):
    return {name: position for position, name in enumerate(inspect.signature(target).parameters)}


def call(target, *arguments, **keywords):
    """A node that calls ``target``; a string among the arguments stands for an input of that name."""
    graph = torch.fx.Graph()
    inputs = {a: graph.placeholder(a) for a in (*arguments, *keywords.values()) if isinstance(a, str)}
    taken = [inputs[a] if isinstance(a, str) else a for a in arguments]
    return graph.call_function(target, tuple(taken), keywords)


@pytest.mark.parametrize("target", [t for t in operator_facts._HIDDEN_WRITES if inspect.isfunction(t)])
def test_a_hidden_write_is_looked_for_at_the_arguments_of_the_signature(target):
    written, (position, keyword, _) = operator_facts._HIDDEN_WRITES[target]
    for index, name in (*written, (position, keyword)):
        assert positions(target)[name] == index


@pytest.mark.parametrize("name", sorted(operator_facts._DROPOUT_ARGUMENTS))
def test_a_drop_probability_is_looked_for_at_the_arguments_of_the_signature(name):
    target = getattr(F, name, None)
    named = positions(target) if inspect.isfunction(target) else {}
    for schema in (overload._schema for overload in operator_facts.aten_overloads(name)):
        named = named or {argument.name: index for index, argument in enumerate(schema.arguments)}
    for index, keyword in filter(None, operator_facts._DROPOUT_ARGUMENTS[name]):
        assert named[keyword] == index


def functions_with_inplace():
    return [f for f in vars(F).values() if inspect.isfunction(f) and "inplace" in inspect.signature(f).parameters]


@pytest.mark.parametrize("target", functions_with_inplace(), ids=lambda f: f.__name__)
def test_an_inplace_argument_by_position_is_a_write(target):
    parameters = inspect.signature(target).parameters
    defaults = {"threshold": 0.5, "value": 0.0}
    for inplace, written in ((False, []), (True, ["x"]), (1, ["x"])):
        between = [inplace if n == "inplace" else defaults.get(n, p.default) for n, p in [*parameters.items()][1:]]
        node = call(target, "x", *between[: positions(target)["inplace"]])
        assert [n.name for n in operator_facts.written_operands(node)] == written
        assert bool(operator_facts.written_operands(call(target, "x", inplace=inplace))) == bool(written)


def test_the_weight_of_an_embedding_bag_is_written_if_its_norm_is_bounded():
    node = call(F.embedding_bag, "ids", "weight", "offsets", 1.0)
    assert "weight" in [n.name for n in operator_facts.written_operands(node)]
    assert not operator_facts.written_operands(call(F.embedding_bag, "ids", "weight", "offsets", None, 2.0))


@pytest.mark.parametrize("target", [F.fractional_max_pool2d, F.fractional_max_pool3d])
def test_a_pooling_of_random_places_draws(target):
    assert operator_facts.draws_random_numbers(call(target, "x", 2, (2, 2)))


def test_positions_of_dropout_in_attention():
    """``multi_head_attention_forward`` draws only if it drops something; its arguments are found by position."""
    names = list(inspect.signature(F.multi_head_attention_forward).parameters)
    assert (names[10], names[13]) == ("dropout_p", "training")
    for p, training, draws in ((0.0, True, False), (0.3, False, False), (0.3, True, True)):
        given = (*[None] * 10, p, None, None, training)
        node = torch.fx.Graph().call_function(F.multi_head_attention_forward, given)
        assert operator_facts.draws_random_numbers(node) is draws
