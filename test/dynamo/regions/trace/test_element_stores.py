"""Note [A store of an element]: layers that keep their state in a list or dict of all layers, or in one of their own."""

import collections
import functools

import pytest
import torch
import torch._dynamo
from testing.cases import some
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters


LAYERS = 6
MODES = ["flag", "mark"]


class Cache:
    """What all layers share."""

    def __init__(self, filled):
        self.rows = [torch.full((2, 4), float(number)) for number in range(LAYERS)]
        self.done = dict.fromkeys(range(LAYERS) if filled else (), False)
        self.names = {f"row {number}": torch.full((2, 4), number / 2) for number in range(LAYERS)}
        self.other = self.rows


class Layer(nn.Module):
    """``fn``: (layer, x, cache, number) -> x."""

    def __init__(self, fn, number):
        super().__init__()
        self.first, self.second, self.fn, self.number = nn.Linear(4, 4), nn.Linear(4, 4), fn, number
        self.own = {"row": torch.full((2, 4), number / 3)}
        self.name = f"row {number}"
        self.weights = nn.ParameterList([torch.ones(4)])
        self.table, self.pair = collections.OrderedDict({self.name: number}), (number, 2.0)

    def forward(self, x, cache, number):
        return x + self.fn(self, self.second(self.first(x).tanh()), cache, number)


class Model(nn.Module):
    """``between``: (model, number, cache), what the frame does before a layer."""

    def __init__(self, mode, fn, between):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(fn, number) for number in range(LAYERS))
        self.between, self.mark = between, mode == "mark"
        self.region = torch.compiler.nested_compile_region(lambda layer, *given: layer(*given))

    def forward(self, x, cache):
        for number, layer in enumerate(self.layers):
            self.between(self, number, cache)
            x = self.region(layer, x, cache, number) if self.mark else layer(x, cache, number)
        return x, len(cache.done), [*cache.done]


def seen(cache, model):
    """All that the program could have changed, in order, and which of it is one object."""
    values = [*cache.rows, *cache.names.values(), *(layer.own["row"] for layer in model.layers)]
    number = {}
    same = [number.setdefault(id(value), len(number)) for value in values]
    done = [(key, value) for key, value in cache.done.items()]
    return [value.tolist() for value in values], done, [*cache.names], same, cache.other is cache.rows


def nothing(model, *given):
    pass


def outcome(mode, fn, filled=True, between=nothing, calls=1, setup=nothing):
    """What calls of the program give and leave behind, how many were compiled; and how many layers were stamped out."""
    torch._dynamo.reset()
    counters.clear()
    model = Model(mode, fn, between)
    counter = CompileCounterWithBackend("eager")
    found = []
    with torch._dynamo.config.patch(use_graph_deduplication=mode == "flag"), torch.no_grad():
        program = model if mode == "eager" else torch.compile(model, backend=counter, fullgraph=True)
        for _ in range(calls):
            cache = Cache(filled)
            setup(model, cache)
            x, *rest = program(torch.linspace(-1, 1, 8).view(2, 4), cache)
            found.append((x.tolist(), rest, seen(cache, model), counter.frame_count if mode != "eager" else None))
    return found, counters["regions"]["reused"]


@functools.cache
def flat(fn, filled=True, between=nothing, calls=1, setup=nothing):
    return outcome("flat", fn, filled, between, calls, setup)[0]


def stores_a_row(layer, x, cache, number):
    cache.rows[number] = x * 2
    return x


def adds_to_a_row(layer, x, cache, number):
    cache.rows[layer.number] = cache.rows[layer.number] + x
    return x


def reads_what_it_stores(layer, x, cache, number):
    cache.rows[number] = torch.cat([cache.rows[number][:1], x[1:]])
    return cache.rows[number] * 2


def marks_it_done(layer, x, cache, number):
    before = cache.done.get(layer.number)
    cache.done[layer.number] = True
    return x if before else x + 1


def stores_by_name(layer, x, cache, number):
    cache.names[layer.name] = x + cache.names[layer.name]
    return x


def stores_in_its_own(layer, x, cache, number):
    layer.own["row"] = layer.own["row"] + x
    return layer.own["row"]


def stores_two(layer, x, cache, number):
    row, is_done = cache.rows[number], cache.done.get(number)
    cache.rows[number] = x
    cache.done[number] = not is_done
    return x + row


def puts_an_element_elsewhere(layer, x, cache, number):
    cache.names[layer.name] = cache.rows[number]
    return x


REUSED = [stores_a_row, adds_to_a_row, reads_what_it_stores, marks_it_done, stores_by_name, stores_in_its_own]
REUSED += [stores_two, puts_an_element_elsewhere]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fn", REUSED)
def test_a_layer_that_stores_to_its_element_is_stamped_out(fn, mode):
    found, reused = outcome(mode, fn, calls=2)
    eager, _ = outcome("eager", fn, calls=2)
    assert found == flat(fn, calls=2)
    assert [each[:3] for each in found] == [each[:3] for each in eager]
    assert reused >= LAYERS - 2  # the first one is not watched from its beginning on, and the second is the body


@pytest.mark.parametrize("mode", MODES)
def test_a_key_that_is_not_there_is_found_missing(mode):
    found, reused = outcome(mode, marks_it_done, filled=False)
    assert found == flat(marks_it_done, filled=False) and reused >= LAYERS - 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fn", REUSED)
def test_verification_traces_what_is_stamped_out(fn, mode):
    with torch._dynamo.config.patch(verify_region_reuse=True):
        assert outcome(mode, fn)[0] == flat(fn)


def reads_the_one_before(layer, x, cache, number):
    cache.rows[number] = x * 2
    return x + cache.rows[number - 1]


def reads_the_length(layer, x, cache, number):
    cache.done[number] = True
    return x + len(cache.done)


def counts_the_done(layer, x, cache, number):
    cache.done[number] = True
    return x + sum(cache.done.values())


def looks_for_the_next(layer, x, cache, number):
    cache.done[number] = True
    return x + 1 if number + 1 in cache.done else x


def takes_the_first_key(layer, x, cache, number):
    cache.done[number] = True
    return x + next(iter(cache.done))


def reads_a_fixed_one(layer, x, cache, number):
    cache.rows[number] = x
    return x + cache.rows[2]


def reads_a_fixed_one_first(layer, x, cache, number):
    fixed = cache.rows[2]
    cache.rows[number] = x
    return x + fixed


def stores_to_a_fixed_one(layer, x, cache, number):
    before = cache.rows[number]
    cache.rows[3] = x
    return x + before


def adds_a_key_for_each(layer, x, cache, number):
    cache.done[number + 100] = number
    return x


def stores_at_a_negative_index(layer, x, cache, number):
    cache.rows[number - LAYERS] = x
    return x + cache.rows[0]


def reads_by_its_other_name(layer, x, cache, number):
    cache.rows[number] = x
    return x + cache.other[number] + cache.other[0]


def stores_by_its_other_name(layer, x, cache, number):
    before = cache.rows[(number * 2) % LAYERS]
    cache.other[number] = x
    return x + before


def copies_all(layer, x, cache, number):
    cache.rows[number] = x
    return x + sum(row.sum() for row in [*cache.rows])


def swaps(layer, x, cache, number):
    cache.rows[0], cache.rows[number] = cache.rows[number], cache.rows[0]
    return x + cache.rows[0]


def takes_one_out(layer, x, cache, number):
    value = cache.done.pop(number, None)
    cache.done[number] = not value
    return x


def removes(layer, x, cache, number):
    cache.done[number] = True
    if number > 2:
        del cache.done[number - 2]
    return x


def updates(layer, x, cache, number):
    cache.done.update({number: True})
    return x + bool(cache.done.get(number))


def appends_too(layer, x, cache, number):
    cache.rows[number] = x
    cache.rows.append(x * 2)
    return x + cache.rows[-1]


def stores_itself(layer, x, cache, number):
    cache.done[number] = cache.done.get(number - 1)
    return x + 1 if cache.done[number] is None else x


def keeps_an_iterator(layer, x, cache, number):
    rows = iter(cache.rows)
    cache.rows[number] = x
    for _ in range(2):
        x = x + next(rows)
    return x


def stores_to_two_that_may_be_one(layer, x, cache, number):
    cache.rows[number] = x
    cache.rows[layer.number * 2 % LAYERS] = x * 2
    return x


def reads_after_two_stores(layer, x, cache, number):
    cache.rows[number] = x
    cache.rows[layer.number * 2 % LAYERS] = x * 2
    return x + cache.rows[number]


def stores_a_list_in_it(layer, x, cache, number):
    cache.done[number] = [number]
    cache.done[number].append(2)
    return x + cache.done[number][1]


def returns_the_container(layer, x, cache, number):
    cache.rows[number] = x
    layer.kept = cache.rows
    return x + layer.kept[0]


def turns_around_after_a_store(layer, x, cache, number):
    cache.rows[number] = x
    cache.rows.reverse()
    return x + cache.rows[number]


def stores_to_the_last_one_too(layer, x, cache, number):
    cache.rows[number] = x
    cache.rows[-1] = x * 2
    return x + cache.rows[number]


def stores_where_nothing_is(layer, x, cache, number):
    try:
        cache.rows[LAYERS + 2 - number] = x
    except IndexError:
        return x + 1
    return x


def reads_an_element_that_the_frame_changes(layer, x, cache, number):
    cache.rows[number] = x
    return x + len(LISTS["rows"])


def gets_by_a_tuple(layer, x, cache, number):
    before = cache.done.get((number, 0), 3)
    cache.done[number] = True
    return x + before + cache.done.get((number, 0), 4)


def reads_by_a_float(layer, x, cache, number):
    cache.rows[number * 1] = x
    try:
        return cache.rows[number * 1.0]
    except TypeError:
        return x + 1


def reads_other_kinds_too(layer, x, cache, number):
    """Containers that are neither a plain list nor a plain dict are indexed in the same call."""
    cache.rows[number] = x
    return x + layer.weights[number % 1] + layer.table[layer.name] + layer.pair[number % 2]


LISTS: dict = {"rows": []}
OTHERS = [turns_around_after_a_store, stores_to_the_last_one_too, stores_where_nothing_is, gets_by_a_tuple]
OTHERS += [
    reads_by_a_float,
    reads_other_kinds_too,
    reads_the_one_before,
    reads_the_length,
    counts_the_done,
    looks_for_the_next,
    takes_the_first_key,
]
OTHERS += [reads_a_fixed_one, reads_a_fixed_one_first, stores_to_a_fixed_one, adds_a_key_for_each]
OTHERS += [stores_at_a_negative_index, reads_by_its_other_name, stores_by_its_other_name, copies_all, swaps]
OTHERS += [takes_one_out, removes, updates, appends_too, stores_itself, keeps_an_iterator]
OTHERS += [stores_to_two_that_may_be_one, reads_after_two_stores, stores_a_list_in_it, returns_the_container]


CASES = [(fn, filled) for fn in OTHERS for filled in ((True, False) if OTHERS.index(fn) % 2 else (False, True))]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fn, filled", some(CASES, CASES[::2]))
def test_a_layer_that_sees_other_elements_gives_what_the_flat_program_gives(fn, filled, mode):
    assert outcome(mode, fn, filled)[0] == flat(fn, filled)


def appends_to_a_list(model, number, cache):
    LISTS["rows"].append(1)


@pytest.mark.parametrize("mode", MODES)
def test_what_an_element_holds_is_compared(mode):
    """The element is found by a plain key, and the frame has realized it: no source was looked up."""
    found = []
    for each in ("flat", mode):
        LISTS["rows"].clear()
        found.append(outcome(each, reads_an_element_that_the_frame_changes, between=appends_to_a_list)[0])
    assert found[0] == found[1]


INNER = torch.compiler.nested_compile_region(lambda layer, x, done: layer(x, done, layer.number))
OUTER = torch.compiler.nested_compile_region(lambda layer, x, done: INNER(layer, x, done).sin())


def _marks_it_done(layer, x, done, number):
    before = done.get(number)
    done[number] = True
    return x if before else x + 1


@pytest.mark.parametrize("calls", [(INNER, OUTER), (OUTER, OUTER)], ids=["inner first", "outer first"])
def test_what_an_inner_call_would_have_read_is_read_by_the_outer_one(calls):
    """The second call of the last layer finds what the first one has stored."""
    layers = nn.ModuleList(Layer(_marks_it_done, number) for number in range(4))

    def program(x, done, first, last):
        for layer in layers[:3]:
            x = first(layer, x, done)
        x = last(layers[3], x, done)
        return last(layers[3], x, done)

    def flat(layer, x, done):
        return layer(x, done, layer.number)

    def flat_outer(layer, x, done):
        return flat(layer, x, done).sin()

    plain = {INNER: flat, OUTER: flat_outer}
    found = []
    for given in (calls, tuple(map(plain.get, calls))):
        torch._dynamo.reset()
        done = {}
        with torch.no_grad():
            x = torch.compile(lambda x, done, given=given: program(x, done, *given), backend="eager", fullgraph=True)(
                torch.ones(2, 4), done
            )
        found.append((x.tolist(), [*done.items()]))
    assert found[0] == found[1]


def empties(model, number, cache):
    if number == 3:
        cache.done.clear()


def turns_around(model, number, cache):
    if number == 3:
        cache.rows.reverse()


def moves_one(model, number, cache):
    if number == 3:
        cache.rows[4] = cache.rows[5]
        cache.done[4] = cache.done.get(0)


def replaces_all(model, number, cache):
    if number == 3:
        cache.rows = [row + 1 for row in cache.rows]
        cache.done = {5: True}


def shortens(model, number, cache):
    if number == 2:
        cache.names.pop("row 4")
        cache.names["row 4"] = torch.ones(2, 4)
        cache.done.pop(4, None)


def iterates(model, number, cache):
    if number == 4:
        for key in list(cache.done):
            cache.done[key] = not cache.done[key]


FRAMES = [empties, turns_around, moves_one, replaces_all, shortens, iterates]


PAIRS = [(fn, between) for fn in REUSED for between in FRAMES]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fn, between", some(PAIRS, PAIRS[::5]))
def test_what_the_frame_does_between_the_layers_is_seen(fn, between, mode):
    for filled in (True, False):
        assert outcome(mode, fn, filled, between)[0] == flat(fn, filled, between)


def one_row_twice(model, cache):
    cache.rows[4] = cache.rows[1]


def one_number_twice(model, cache):
    model.layers[4].number, model.layers[4].name = 1, "row 1"


def a_subclass(model, cache):
    cache.done = type("Mine", (dict,), {})(cache.done)


def fewer(model, cache):
    cache.done.pop(2, None)


SHAPES = [(fn, setup) for fn in REUSED for setup in (one_row_twice, one_number_twice, a_subclass, fewer)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fn, setup", some(SHAPES, SHAPES[::3]))
def test_containers_of_other_shapes_are_told_apart(fn, setup, mode):
    assert outcome(mode, fn, setup=setup)[0] == flat(fn, setup=setup)


@pytest.mark.parametrize("mode", MODES)
def test_a_changed_element_compiles_again_as_often_as_flat(mode):
    """The second and third calls find other values at the elements that the layers read."""
    calls = []

    def setup(model, cache):
        calls.append(None)
        cache.done[4] = len(calls) % 3 == 0

    expected = flat(marks_it_done, setup=setup, calls=4)
    calls.clear()
    found, reused = outcome(mode, marks_it_done, setup=setup, calls=4)
    assert found == expected and reused


@pytest.mark.parametrize("mode", MODES)
def test_a_container_of_another_kind_is_indexed_by_a_deferred_constant(mode):
    """Where no layer stores, too: what has no elements as a list or dict has them was read as one of these."""
    found, _ = outcome(mode, lambda layer, x, cache, number: x + layer.weights[number % 1] + layer.pair[number % 2])
    expected, _ = outcome("flat", lambda layer, x, cache, number: x + layer.weights[0] + layer.pair[number % 2])
    assert found == expected
