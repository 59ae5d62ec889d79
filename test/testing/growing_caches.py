"""Programs whose regions find an element of a cache by a number and bind its attributes anew, as growing caches do.

Each function takes a mark and returns a program of one tensor and the state to look at afterwards.
"""

import torch
from testing.deferred_programs import Plain, calling


class Grown:
    """What one layer keeps of all calls."""

    def __init__(self, number):
        self.keys = torch.full((1, 4), float(number))
        self.ready = False
        self.before = None

    def update(self, x):
        if not self.ready:
            self.ready = True
        self.keys = torch.cat([self.keys, x])
        return self.keys


def _layers():
    return [Grown(k) for k in range(5)]


def _attended(x, kept):
    return torch.softmax(x @ kept.t(), -1) @ kept


def _attends(x, layers, i):
    return _attended(x, layers[i].update(x))


def element_that_grows(mark):
    layers = _layers()
    return calling(mark, _attends, layers, range(5)), layers


def element_of_an_object_that_grows(mark):
    cache = Plain(layers=_layers(), length=3)
    body = calling(mark, lambda x, cache, i: _attended(x, cache.layers[i].update(x)), cache, range(5))
    return lambda x: body(x) * cache.layers[0].keys.shape[0], cache.layers


def element_that_grows_and_was_known_before(mark):
    layers = _layers()
    body = calling(mark, _attends, layers, range(5))
    return lambda x: body(x * layers[0].keys.shape[0] + layers[3].keys.shape[0]), layers


def element_of_a_dict_that_grows(mark):
    layers = {f"layer{k}": Grown(k) for k in range(5)}
    body = lambda x, layers, i: _attended(x, layers[f"layer{i}"].update(x))  # noqa: E731
    return calling(mark, body, layers, range(5)), [*layers.values()]


def element_that_two_layers_share(mark):
    layers = _layers()
    return calling(mark, _attends, layers, (0, 1, 2, 2, 3, 1)), layers


def element_that_is_there_twice(mark):
    layers = _layers()
    layers[4] = layers[2]
    return calling(mark, _attends, layers, range(5)), layers


def element_that_grows_beside_the_first(mark):
    layers = _layers()
    body = lambda x, layers, i: _attends(x, layers, i) + layers[0].keys.sum()  # noqa: E731
    return calling(mark, body, layers, range(5)), layers


def element_that_grows_beside_all(mark):
    layers = _layers()
    body = lambda x, layers, i: _attends(x, layers, i) * sum(m.keys.shape[0] for m in layers)  # noqa: E731
    return calling(mark, body, layers, range(5)), layers


def element_that_knows_the_one_before(mark):
    layers = _layers()
    for one, other in zip(layers, layers[1:]):
        other.before = one

    def body(x, layers, i):
        kept = layers[i].update(x)
        return _attended(x, kept) if layers[i].before is None else _attended(x, kept) + layers[i].before.keys.sum()

    return calling(mark, body, layers, range(5)), layers[:1]


def element_that_is_compared_with_the_first(mark):
    layers = _layers()
    body = lambda x, layers, i: _attends(x, layers, i) * (2 if layers[i] is layers[0] else 3)  # noqa: E731
    return calling(mark, body, layers, range(5)), layers


def element_that_is_replaced(mark):
    layers = _layers()

    def body(x, layers, i):
        kept = layers[i].update(x)
        layers[(i + 1) % 5] = fresh = Grown(i)
        fresh.keys = kept
        return _attended(x, kept)

    return calling(mark, body, layers, (0, 2, 4)), layers


def element_that_the_frame_changes_between(mark):
    layers = _layers()
    marked = mark(_attends)

    def program(x):
        for i in range(5):
            layers[i].keys = layers[i].keys * 2 if i % 2 else layers[i].keys
            x = marked(x, layers, i)
        return x

    return program, layers


def element_with_a_list_that_grows(mark):
    layers = [Plain(kept=[torch.ones(2, 4)]) for _ in range(4)]

    def body(x, layers, i):
        layers[i].kept = [*layers[i].kept, x.cos()]
        return x.sin() + sum(layers[i].kept)

    return calling(mark, body, layers, range(4)), layers


def element_of_an_element_that_grows(mark):
    layers = [Plain(parts=[Grown(k), Grown(k + 1)]) for k in range(4)]

    def body(x, layers, i):
        one, other = layers[i].parts
        return _attended(x, one.update(x)) + _attended(x, other.update(x))

    return calling(mark, body, layers, range(4)), [part for layer in layers for part in layer.parts]


# Program -> how often a call is traced; None if that is not asked for.
PROGRAMS = {
    element_that_grows: 1,
    element_of_an_object_that_grows: 1,
    element_that_grows_and_was_known_before: 2,
    element_of_a_dict_that_grows: None,
    element_that_two_layers_share: None,
    element_that_is_there_twice: None,
    element_that_grows_beside_the_first: None,
    element_that_grows_beside_all: None,
    element_that_knows_the_one_before: None,
    element_that_is_compared_with_the_first: None,
    element_that_is_replaced: None,
    element_that_the_frame_changes_between: None,
    element_with_a_list_that_grows: 1,
    element_of_an_element_that_grows: 1,
}
