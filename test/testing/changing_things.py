"""Programs in which the frame, or a region's call, changes what stands behind another call's arguments."""

import collections

from testing.deferred_programs import Plain


class Slots:
    """An object without a ``__dict__``."""

    __slots__ = ("n",)

    def __init__(self, n):
        self.n = n


class Counter:
    """Functions that share a cell of their own."""

    def __init__(self, n):
        def get():
            return n

        def put(value):
            nonlocal n
            n = value

        def step():
            nonlocal n
            n += 1

        self.get, self.put, self.step = get, put, step


def _calls(marked, layers, change=None, at=2):
    """A program that calls ``marked`` with each of ``layers``, and ``change`` before the call with that number."""

    def program(x):
        for i, layer in enumerate(layers):
            if change is not None and i == at:
                change()
            x = marked(layer, x)
        return x

    return program


def slots_that_the_frame_changes(mark):
    layers = [Plain(config=Slots(2.0)) for _ in range(4)]

    def change():
        layers[2].config.n = 5.0

    return _calls(mark(lambda layer, x: x.sin() * layer.config.n), layers, change)


def slots_that_are_one_object_to_a_later_call(mark):
    def body(pair, x):
        pair.a.n = 7.0
        return x.sin() * pair.b.n

    one = Slots(1.0)
    return _calls(mark(body), [Plain(a=a or Slots(1.0), b=a or Slots(1.0)) for a in (None, one, None)])


def a_deque_that_the_frame_appends_to(mark):
    layers = [Plain(queue=collections.deque([1])) for _ in range(4)]
    return _calls(mark(lambda layer, x: x.sin() * len(layer.queue)), layers, lambda: layers[2].queue.append(3))


def a_deque_that_is_known_by_another_name(mark):
    queue = collections.deque([1])
    layers = [Plain(queue=collections.deque([1])), Plain(queue=collections.deque([1])), Plain(queue=queue)]
    return _calls(mark(lambda layer, x: x.sin() * len(layer.queue)), layers, lambda: queue.append(2), at=0)


def a_cell_that_the_frame_binds(mark):
    """The second call finds its cell bound; the others find their own as they were."""
    layers = [Counter(float(i)) for i in range(1, 5)]
    return _calls(mark(lambda layer, x: x.sin() * layer.get()), layers, lambda: layers[1].put(9.0), at=1)


def a_cell_that_the_frame_binds_for_a_later_call(mark):
    layers = [Counter(1.0) for _ in range(4)]
    return _calls(mark(lambda layer, x: x.sin() * layer.get()), layers, lambda: layers[2].put(9.0), at=0)


def a_cell_that_each_call_binds(mark):
    layers = [Counter(1.0) for _ in range(3)]

    def body(layer, x):
        layer.step()
        return x.sin()

    program = _calls(mark(body), layers * 2)
    return lambda x: (program(x), [layer.get() for layer in layers])


def a_cell_that_is_known_by_another_function(mark):
    layers = [Counter(float(i)) for i in range(1, 4)]
    first = layers[0].get
    program = _calls(mark(lambda layer, x: x.sin() * layer.get()), layers)
    return lambda x: program(x * first())


PROGRAMS = [
    slots_that_the_frame_changes,
    slots_that_are_one_object_to_a_later_call,
    a_deque_that_the_frame_appends_to,
    a_deque_that_is_known_by_another_name,
    a_cell_that_the_frame_binds,
    a_cell_that_the_frame_binds_for_a_later_call,
    a_cell_that_each_call_binds,
    a_cell_that_is_known_by_another_function,
]
