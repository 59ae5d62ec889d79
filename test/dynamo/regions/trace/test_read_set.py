"""Programs that an earlier version of the reuse got wrong, each named after what it did not see."""

import inspect

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters


X = torch.ones(1)


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def loop(mark, body, layers):
    marked = mark(body)

    def program(x):
        x = x * 1
        for layer in layers:
            x = marked(layer, x)
        return x

    return program


def one(**more):
    return torch.ones(1, **more)


def shape_of_a_tensor_that_is_no_operand(mark):
    return loop(mark, lambda o, x: x * o.w.shape[0], [Plain(w=torch.ones(2)), Plain(w=torch.ones(3))]), []


def flag_of_a_tensor_that_is_no_operand(mark):
    layers = [Plain(w=one()), Plain(w=one())]
    program = loop(mark, lambda o, x: x * 2 if o.w.requires_grad else x + 7, layers)
    return program, [lambda: layers[1].w.requires_grad_()]


def identity_of_tensors_that_are_no_operands(mark):
    layers = [Plain(w=one(), v=one()) for _ in range(2)]
    program = loop(mark, lambda o, x: x * 2 if o.w is o.v else x + 7, layers)
    return program, [lambda: setattr(layers[1], "w", layers[1].v)]


def number_with_a_symbol_of_its_own(mark):
    layers = [Plain(k=2), Plain(k=2)]
    edits = [lambda: [setattr(o, "k", 3) for o in layers], lambda: setattr(layers[1], "k", 5)]
    return loop(mark, lambda o, x: x * o.k, layers), edits


SCALE = 3


def global_bound_anew(mark):
    marked = mark(lambda x: x * 2 + SCALE)

    def program(x):
        global SCALE
        x = marked(x * 1)
        SCALE = 4
        x = marked(x)
        SCALE = 3
        return x

    return program, []


def cell_bound_anew(mark):
    k = one()
    marked = mark(lambda x: x * 2 + k)

    def program(x):
        nonlocal k
        x = marked(x * 1)
        k = x * 5
        x = marked(x)
        k = torch.ones(1)
        return x

    return program, []


def list_in_a_cell(mark):
    numbers = [1]
    marked = mark(lambda x, k: x * 2 + k + sum(numbers))

    def program(x):
        x = marked(marked(x * 1, 1), 2)
        numbers.append(5)
        x = marked(x, 2)
        numbers.pop()
        return x

    return program, []


def object_in_a_cell(mark):
    o = Plain(a=1)
    marked = mark(lambda x, k: x * 2 + k + o.a)

    def program(x):
        x = marked(marked(x * 1, 1), 2)
        o.a = 7
        x = marked(x, 2)
        o.a = 1
        return x

    return program, []


def list_that_outlives_the_call(mark):
    kept = {}

    def body(x):
        if "l" not in kept:
            kept["l"] = [0]
        return x * 2 + 1, kept["l"]

    marked = mark(body)

    def program(x):
        x = x * 1
        lengths = []
        for _ in range(4):
            x, numbers = marked(x)
            numbers.append(1)
            lengths.append(len(numbers))
        kept.clear()
        return x, lengths

    return program, []


def order_of_a_dict(mark):
    layers = [Plain(d={"a": 1, "b": 2}), Plain(d={"b": 2, "a": 1})]
    return loop(mark, lambda o, x: x * 2 if next(iter(o.d)) == "a" else x + 7, layers), []


def order_of_attributes(mark):
    layers = [Plain(a=1, b=2), Plain(b=2, a=1)]
    return loop(mark, lambda o, x: x * 2 if next(iter(vars(o))) == "a" else x + 7, layers), []


def attribute_of_a_result(mark):
    def body(x):
        y = x * 2
        y.tag = 3
        return y

    marked = mark(body)

    def program(x):
        x = x * 1
        tags = []
        for _ in range(3):
            x = marked(x)
            tags.append(getattr(x, "tag", None))
        return x, tags

    return program, []


def traced_call_on_the_result_of_a_stamp(mark):
    return loop(mark, lambda k, x: x * 2 + k, [1, 1, 2, 2, 1, 2]), []


def two_functions_in_turn(mark):
    f, g = mark(lambda x: x * 2 + 1), mark(lambda x: x.sin())
    return lambda x: g(g(f(f(f(x * 1))))), []


def call_under_vmap(mark):
    g = mark(lambda r: r * 2 + 1)
    return lambda x: torch.func.vmap(lambda r: g(g(g(r))))(x * 1), []


SHARED = Plain(w=torch.tensor([2.0]))
SHARED_LIST = [SHARED]


def _with_shared(where):
    """Layers, the one at ``where`` of which holds what the body finds in a global too."""
    subs = [Plain(w=torch.tensor([float(k)])) for k in (3, 5, 7, 11)]
    subs[where] = SHARED
    return [Plain(sub=sub) for sub in subs]


def global_that_is_behind_an_argument(mark):
    return loop(mark, lambda o, x: x * o.sub.w + SHARED.w, _with_shared(0)), []


def global_that_is_behind_a_later_argument(mark):
    return loop(mark, lambda o, x: x * o.sub.w + (SHARED.w if o.sub is SHARED else 1), _with_shared(2)), []


def global_that_is_an_argument(mark):
    tensors = [SHARED.w, *(torch.tensor([float(k)]) for k in (3, 5))]
    return loop(mark, lambda w, x: x * w + SHARED.w, tensors), []


def global_list_that_holds_what_is_behind_an_argument(mark):
    layers = _with_shared(0)
    inner = loop(mark, lambda o, x: x * o.sub.w + SHARED_LIST[0].w, layers)
    return lambda x: inner(x * layers[0].sub.w * SHARED_LIST[0].w), []


def argument_of_the_frame_that_is_returned(mark):
    marked = mark(lambda x: (x, {"x": x}, x.sin() + 1))

    def program(x):
        found = []
        for _ in range(3):
            a, b, x = marked(x)
            found += [a, b]
        return x, found

    return program, []


def argument_of_the_frame_that_is_also_behind_another(mark):
    layers = [Plain(t=X) for _ in range(3)]
    marked = mark(lambda layer, x: x.sin() + 1 if x is layer.t else x.cos())

    def program(x):
        for layer in layers:
            x = marked(layer, x)
        return x

    return program, []


GIVEN = torch.tensor([2.0])
OTHER = torch.tensor([5.0])


def global_that_is_itself_an_argument(mark):
    marked = mark(lambda x, a: x + GIVEN * 2 + a)
    return lambda x: [marked(x * 1, GIVEN), marked(x, OTHER), marked(x * 2, x + 1), marked(x, GIVEN)], []


def argument_that_is_also_reached_through_another(mark):
    first, second = (Plain(one=Plain(w=one() * k), two=Plain(w=one() * -k)) for k in (1, 2))
    marked = mark(lambda x, o, part: x * o.one.w + part.w)
    given = [(first, first.one), (first, first.two), (second, second.one), (second, second.two), (second, first.one)]
    return lambda x: [marked(x * 1, o, part) for o, part in given], []


def element_of_a_list_that_is_an_argument_too(mark):
    layers = [Plain(w=one() * k) for k in (1, 2, 3)]
    marked = mark(lambda x, layers, layer: x * layers[0].w + layer.w)
    return lambda x: [marked(x * 1, layers, layer) for layer in layers], []


def object_that_is_known_but_not_read(mark):
    shared = Plain(flag=False, scale=1)
    layers = [Plain(sub=Plain(flag=False)), Plain(sub=shared), Plain(sub=Plain(flag=False))]
    inner = loop(mark, lambda o, x: x * 2 if o.sub.flag else x + 7, layers)
    return lambda x: inner(x * shared.scale), [lambda: setattr(shared, "flag", True)]


def cell_bound_to_what_it_was_bound_to(mark):
    last = None

    def body(x):
        nonlocal last
        last = x
        return x.sin()

    marked = mark(body)

    def program(x):
        nonlocal last
        last = x = x * 1
        for _ in range(3):
            x = marked(x)
        return x, last

    return program, []


def identity_of_tuples(mark):
    marked = mark(lambda x, a, b: (x.sin() if a is b else x.cos(), a))

    def program(x):
        y, found = x * 1, []
        for i in range(3):
            one, other = (i, None), (i, None)
            y, same = marked(y, one, one)
            y, _ = marked(y, one, other)
            found.append(same is one)
        return y, found

    return program, []


def _with_default(k):
    return lambda x, y=k: x


def signature_that_the_frame_has_kept(mark):
    functions = [_with_default(k) for k in (2, 2, 3)]
    layers = [Plain(f=f) for f in (functions[0], *functions)]
    inner = loop(mark, lambda o, x: x.sin() * inspect.signature(o.f).parameters["y"].default, layers)
    edits = [lambda: setattr(layers[3], "f", functions[1]), lambda: setattr(layers[1], "f", functions[2])]
    return lambda x: inner(x * len(inspect.signature(functions[0]).parameters)), edits


PROGRAMS = [
    signature_that_the_frame_has_kept,
    global_that_is_itself_an_argument,
    argument_that_is_also_reached_through_another,
    element_of_a_list_that_is_an_argument_too,
    object_that_is_known_but_not_read,
    cell_bound_to_what_it_was_bound_to,
    identity_of_tuples,
    argument_of_the_frame_that_is_returned,
    argument_of_the_frame_that_is_also_behind_another,
    global_that_is_behind_an_argument,
    global_that_is_behind_a_later_argument,
    global_that_is_an_argument,
    global_list_that_holds_what_is_behind_an_argument,
    shape_of_a_tensor_that_is_no_operand,
    flag_of_a_tensor_that_is_no_operand,
    identity_of_tensors_that_are_no_operands,
    number_with_a_symbol_of_its_own,
    global_bound_anew,
    cell_bound_anew,
    list_in_a_cell,
    object_in_a_cell,
    list_that_outlives_the_call,
    order_of_a_dict,
    order_of_attributes,
    attribute_of_a_result,
    traced_call_on_the_result_of_a_stamp,
    two_functions_in_turn,
    call_under_vmap,
]


@pytest.mark.parametrize("verified", [False, True], ids=["reused", "verified"])
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_not_overlooked(make, verified):
    """Results of a first call and of one after each edit are those of eager."""
    torch._dynamo.reset()
    counters.clear()
    program, edits = make(torch.compiler.nested_compile_region)
    compiled = torch.compile(program, backend="eager")
    with torch._dynamo.config.patch(graph_deduplication_lint=True, verify_region_reuse=verified):
        for edit in (None, *edits):
            if edit is not None:
                edit()
            got = compiled(X)
            wanted = program(X)
            assert str(got) == str(wanted)
    assert counters["regions"]["traced"] + counters["regions"]["inlined"] > 0


def test_reuse_is_what_the_programs_are_about():
    """Without reuse, they would prove nothing."""
    reused = set()
    for make in PROGRAMS:
        torch._dynamo.reset()
        counters.clear()
        program, _ = make(torch.compiler.nested_compile_region)
        torch.compile(program, backend="eager")(X)
        if counters["regions"]["reused"]:
            reused.add(make.__name__)
    assert reused >= {
        "signature_that_the_frame_has_kept",
        "global_that_is_behind_an_argument",
        "global_that_is_behind_a_later_argument",
        "global_that_is_an_argument",
        "global_list_that_holds_what_is_behind_an_argument",
        "flag_of_a_tensor_that_is_no_operand",
        "identity_of_tensors_that_are_no_operands",
        "number_with_a_symbol_of_its_own",
        "traced_call_on_the_result_of_a_stamp",
        "two_functions_in_turn",
    }
