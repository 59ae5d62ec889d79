"""What a program makes of an object's identity, without a guard that says so, is not taken over by another call."""

import math

import pytest
import torch
import torch._dynamo
from testing.deferred_programs import Plain
from torch import nn
from torch._dynamo.regions.outcomes import ReuseMissReason, outcomes
from torch._dynamo.utils import counters
from torch.utils._release import RELEASE


X = torch.linspace(0.1, 1.0, 4)
SENTINEL = "a sentinel that is no identifier"


class Key:
    pass


def _function(k):
    return lambda x: x * k


def _each(body, values):
    layers = [Plain(value=value) for value in values]

    def build(mark):
        run = mark(body)

        def program(x):
            for layer in layers:
                x = run(layer, x)
            return x

        return program

    return build


def _found_in(container):
    return lambda layer, x: x.sin() * (2 if layer.value in container else 3)


def _looked_up_in(table):
    return lambda layer, x: x.sin() * table.get(layer.value, 5)


def equal_floats():
    number = 1000.5
    return _each(lambda layer, x: x.sin() * (2 if layer.value is number else 3), [number, float("1000.5")] * 2)


def equal_strings():
    return _each(
        lambda layer, x: x.sin() * (2 if layer.value is not SENTINEL else 3), ["".join(list(SENTINEL)), SENTINEL] * 2
    )


def equal_strings_as_arguments():
    values = [SENTINEL, "".join(list(SENTINEL))] * 2

    def build(mark):
        run = mark(lambda value, x: x.sin() * (2 if value is SENTINEL else 3))

        def program(x):
            for value in values:
                x = run(value, x)
            return x

        return program

    return build


def numbers_that_equal_nothing():
    return _each(lambda layer, x: x.sin() * (2 if layer.value in [math.nan] else 3), [math.nan, float("nan")] * 2)


def tuples_of_numbers_that_equal_nothing():
    return _each(
        lambda layer, x: x.sin() * (2 if layer.value == (math.nan,) else 3), [(math.nan,), (float("nan"),)] * 2
    )


def hashes():
    keys = [Key() for _ in range(4)]
    table = {hash(key): 2 + n for n, key in enumerate(keys)}
    return _each(lambda layer, x: x.sin() * table[hash(layer.value)], keys)


def hashes_by_method():
    keys = [Key() for _ in range(4)]
    table = {hash(key): 2 + n for n, key in enumerate(keys)}
    return _each(lambda layer, x: x.sin() * table[layer.value.__hash__()], keys)


def hashes_of_functions():
    functions = [_function(2) for _ in range(4)]
    table = {hash(f): 2 + n for n, f in enumerate(functions)}
    return _each(lambda layer, x: layer.value(x.sin()) * table[hash(layer.value)], functions)


def classes_as_keys():
    classes = [type(f"Class{n}", (), {}) for n in range(4)]
    return _each(_looked_up_in({classes[1]: 2, classes[3]: 3}), classes)


def classes_in_a_set():
    classes = [type(f"Class{n}", (), {}) for n in range(4)]
    return _each(_found_in({classes[1], classes[3]}), classes)


def builtins_as_keys():
    return _each(_looked_up_in({abs: 2, min: 3}), [len, abs, max, min])


def functions_of_torch_as_keys():
    return _each(_looked_up_in({torch.cos: 2, torch.exp: 3}), [torch.sin, torch.cos, torch.tanh, torch.exp])


def functions_as_keys():
    functions = [_function(2) for _ in range(4)]
    return _each(_looked_up_in({functions[1]: 2, functions[3]: 3}), functions)


def functions_as_keys_that_are_called_too():
    functions = [_function(2) for _ in range(4)]
    table = {functions[0]: 2, functions[2]: 3}
    return _each(lambda layer, x: layer.value(x.sin()) * table.get(layer.value, 5), functions)


def keys_of_a_call_inside_a_call():
    classes = [type(f"Class{n}", (), {}) for n in range(6)]
    table = {classes[2]: 2, classes[5]: 3}

    def build(mark):
        inner = mark(_looked_up_in(table))
        outer = mark(lambda a, b, x: inner(b, inner(a, x)) + 1)
        layers = [Plain(value=c) for c in classes]

        def program(x):
            for n in range(0, 6, 2):
                x = outer(layers[n], layers[n + 1], x)
            return x

        return program

    return build


PROGRAMS = [
    *(equal_floats, equal_strings, equal_strings_as_arguments, numbers_that_equal_nothing),
    tuples_of_numbers_that_equal_nothing,
    # From 2.15 on, Dynamo breaks the graph at most lookups of such a number.
    *((hashes, hashes_by_method, hashes_of_functions) if RELEASE < (2, 15) else ()),
    *(classes_as_keys, classes_in_a_set, builtins_as_keys, functions_of_torch_as_keys),
    *(functions_as_keys, functions_as_keys_that_are_called_too, keys_of_a_call_inside_a_call),
]


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_as_without_a_mark(make):
    build = make()
    got = build(torch.compiler.nested_compile_region)
    torch.testing.assert_close(torch.compile(got, backend="eager", fullgraph=True)(X), build(lambda body: body)(X))


@pytest.mark.parametrize("flag", [False, True])
def test_a_set_of_layers_tells_which_layer_is_in_it(flag):
    special = set()

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x).sin() * (2 if self in special else 3)

    class Marked(Layer):
        @torch.compiler.nested_compile_region
        def forward(self, x):
            return super().forward(x)

    model = nn.Sequential(*[(Layer if flag else Marked)() for _ in range(4)])
    special.update((model[0], model[2]))
    with torch._dynamo.config.patch(use_graph_deduplication=flag):
        torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(X), model(X))


def test_one_class_of_all_layers_is_a_key_of_each_call():
    build = _each(_looked_up_in({Key: 2}), [Key] * 4)
    torch.compile(build(torch.compiler.nested_compile_region), backend="eager", fullgraph=True)(X)
    assert counters["regions"]["reused"] == 3


def test_a_hash_of_constants_is_a_value():
    build = _each(lambda layer, x: x.sin() * (hash((layer.value, 2)) % 7), [1] * 4)
    torch.compile(build(torch.compiler.nested_compile_region), backend="eager", fullgraph=True)(X)
    assert counters["regions"]["reused"] == 3


def test_the_reason_is_named():
    torch.compile(equal_floats()(torch.compiler.nested_compile_region), backend="eager", fullgraph=True)(X)
    misses = [outcome.miss for outcome in outcomes()]
    assert misses == [ReuseMissReason.UNSUPPORTED_VALUE] * 4
