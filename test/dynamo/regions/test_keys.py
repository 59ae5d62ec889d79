"""Keys of constants, tensors and nodes: equal exactly when the meaning is."""

import enum
import itertools
import operator

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch._dynamo.regions.keys import NodeIdentity, Unkeyable, constant_key
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._ambient_state import global_state_key


class Colour(enum.Enum):
    RED = 1


class Shade(enum.IntEnum):
    RED = 1


def double(x):
    return x * 2


def triple(x):
    return x * 3


DIFFERENT = [
    1,
    1.0,
    True,
    False,
    0,
    0.0,
    -0.0,
    float("nan"),
    float("inf"),
    1 + 0j,
    complex(0.0, -0.0),
    0j,
    None,
    ...,
    "sum",
    "mean",
    b"sum",
    Colour.RED,
    Shade.RED,
    torch.float32,
    torch.float16,
    torch.device("cpu"),
    torch.device("cuda", 0),
    torch.device("cuda", 1),
    torch.strided,
    torch.contiguous_format,
    torch.channels_last,
    slice(0, 1),
    slice(0, 1, 1),
    slice(0.0, 1),
    range(1),
    range(0, 1, 2),
    (),
    [],
    {},
    (1,),
    [1],
    (1.0,),
    (True,),
    ((1,),),
    [[1], 2],
    [1, [2]],
    {"a": 1},
    {"a": 1.0},
    {"b": 1},
    torch.Size([1]),
    double,
    triple,
    torch.sin,
    torch.cos,
    torch.ops.aten.sin.default,
    torch.ops.aten.sin.out,
    torch.Tensor,
]


def test_constants_that_differ_in_type_or_value_have_different_keys():
    for a, b in itertools.combinations(DIFFERENT, 2):
        assert constant_key(a) != constant_key(b), (a, b)


def test_equal_constants_have_equal_hashable_keys():
    for value in DIFFERENT:
        again = float("nan") if value != value else value
        assert hash(constant_key(value)) == hash(constant_key(again)), value
        assert constant_key(value) == constant_key(again), value


def test_what_cannot_be_keyed_is_refused():
    for value in (object(), torch.Generator(), torch.ones(1), [1, object()], {"a": object()}):
        with pytest.raises(Unkeyable):
            constant_key(value)


def test_a_function_is_only_the_same_as_itself():
    assert constant_key(lambda: 0) != constant_key(lambda: 0)


def _tensors():
    with FakeTensorMode() as mode:
        base = torch.empty(4, 4)
        yield "plain", base
        yield "shape", torch.empty(4, 5)
        yield "stride", base.t()
        yield "dtype", torch.empty(4, 4, dtype=torch.float64)
        yield "grad", torch.empty(4, 4, requires_grad=True)
        yield "complex", torch.empty(4, 4, dtype=torch.complex64)
        yield "imaginary", torch.empty(4, 4, dtype=torch.complex64).imag
        yield "device", torch.empty(4, 4, device="meta")
        del mode


def test_tensors_that_differ_in_any_metadata_have_different_keys():
    keys = {name: NodeIdentity().value_key(t) for name, t in _tensors()}
    assert len(set(keys.values())) == len(keys)


def test_a_node_has_the_offsets_of_its_operands_where_its_operator_sees_them():
    def key_of(target, rows, *arguments):
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        with FakeTensorMode():
            x.meta["example_value"] = torch.empty(5, 4)[rows]
            node = graph.call_function(target, (x, *arguments))
            node.meta["example_value"] = target(x.meta["example_value"], *arguments)
        return NodeIdentity().key(node, ())

    first, second = slice(0, 2), slice(1, 3)
    assert key_of(torch.sin, first) == key_of(torch.sin, second)
    strided = ((2, 2), (1, 1), 1)
    assert key_of(torch.as_strided, first, *strided) != key_of(torch.as_strided, second, *strided)


def test_containers_of_tensors_are_keyed_by_structure():
    (_, a), *_ = _tensors()
    identity = NodeIdentity()
    assert identity.value_key((a, a)) != identity.value_key([a, a])
    assert identity.value_key((a, a)) != identity.value_key(((a, a),))


def test_a_container_that_many_operators_read_is_keyed_once():
    """An unrolled loop takes each of n rows from one result: n keys of n tensors would be quadratic."""
    graph = torch.fx.Graph()
    with FakeTensorMode():
        rows = torch.empty(300, 4).unbind()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.empty(300, 4)
    unbound = graph.call_method("unbind", (x,))
    unbound.meta["example_value"] = rows
    items = [graph.call_function(operator.getitem, (unbound, k)) for k in range(300)]
    for item, row in zip(items, rows):
        item.meta["example_value"] = row
    asked = 0

    class Counting(NodeIdentity):
        def value_key(self, value):
            nonlocal asked
            asked += 1
            return super().value_key(value)

    identity, other = Counting(), NodeIdentity()
    keys = [identity.key(item, ()) for item in items]
    assert len(set(keys)) == 300 and asked < 5 * 300
    # By structure, also between two passes.
    assert keys[7] == other.key(items[7], ()) and hash(keys[7]) == hash(other.key(items[7], ()))
    unbound.meta["example_value"] = rows[:-1]
    assert NodeIdentity().key(items[7], ()) != keys[7]


def test_subclasses_and_sparse_tensors_have_no_key():
    class Mine(torch.Tensor):
        pass

    for value in (torch.ones(1).as_subclass(Mine), torch.ones(1), torch.ones(2, 2).to_sparse()):
        with pytest.raises(Unkeyable):
            NodeIdentity().value_key(value)


def test_tensors_with_lazy_bits_have_no_key():
    with FakeTensorMode():
        conjugate = torch.empty(4, 4, dtype=torch.complex64).conj()
    for value in (conjugate, conjugate.imag):
        with pytest.raises(Unkeyable, match="conj or neg bit"):
            NodeIdentity().value_key(value)


def test_unbacked_sizes_have_no_key():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        size = mode.shape_env.create_unbacked_symint()
        with pytest.raises(Unkeyable):
            NodeIdentity().value_key(torch.empty(size))


GLOBAL_STATES = {
    "no_grad": lambda: torch.no_grad(),
    "inference_mode": lambda: torch.inference_mode(),
    "autocast_bfloat16": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast_float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "autocast_other_device": lambda: torch.autocast("xpu", dtype=torch.bfloat16),
    "autocast_cache": lambda: torch.autocast("cpu", enabled=False, cache_enabled=False),
    "default_device": lambda: torch.device("meta"),
    "saved_tensors_hooks_disabled": lambda: torch.autograd.graph.disable_saved_tensors_hooks("no"),
}


def test_each_global_state_has_a_key_of_its_own():
    keys = {"none": global_state_key()}
    for name, enter in GLOBAL_STATES.items():
        try:
            context = enter()
        except RuntimeError:  # a device that this build of torch does not know
            continue
        with context:
            keys[name] = global_state_key()
    torch.use_deterministic_algorithms(True)
    keys["deterministic"] = global_state_key()
    torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float64)
    keys["default_dtype"] = global_state_key()
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("high")
    keys["matmul_precision"] = global_state_key()
    torch.set_float32_matmul_precision("highest")
    assert len(set(keys.values())) == len(keys)
    assert keys["none"] == global_state_key()


def _keys_of(function, *args):
    """Keys of the operators that Dynamo records for ``function``."""
    found = []

    def backend(gm, _):
        identity = NodeIdentity()
        found.extend(identity.key(n, None) for n in gm.graph.nodes if n.op.startswith("call_"))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True)(*args)
    return found


def test_the_order_of_keywords_means_nothing():
    x = torch.randn(4, 4)
    a, b = _keys_of(lambda x: (x.sum(dim=0, keepdim=True), x.sum(keepdim=True, dim=0)), x)
    assert a == b


@pytest.mark.parametrize(
    "pair",
    [
        lambda x: (x.sin(), x.cos()),
        lambda x: (x + 1, x + 1.0),
        lambda x: (F.gelu(x), F.gelu(x, approximate="tanh")),
        lambda x: (x[0:2], x[1:3]),
        lambda x: (x.sum(0), x.sum((0,))),
        lambda x: (x * x, x * x.t()),
        lambda x: (torch.einsum("ij,jk->ik", x, x), torch.einsum("ij,kj->ik", x, x)),
    ],
)
def test_operators_with_other_arguments_have_different_keys(pair):
    keys = _keys_of(pair, torch.randn(4, 4))
    assert len(set(keys)) == len(keys)


def test_precision_that_a_backend_was_given():
    """torch.get_float32_matmul_precision() raises then; a program without regions must compile."""
    places = (torch.backends.mkldnn.matmul, torch.backends.cuda.matmul)
    before = [place.fp32_precision for place in places]
    plain = global_state_key()
    try:
        places[0].fp32_precision, places[1].fp32_precision = "bf16", "tf32"
        assert global_state_key() != plain
        assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3)).sum() == 6
    finally:
        for place, value in zip(places, before, strict=True):
            place.fp32_precision = value
