"""Programs whose regions take, index with, count, store and append constants, or write to what they are given.

Each function takes a mark and returns a program of one tensor and the state to look at afterwards.
"""

import math

import torch
import torch._dynamo
from torch import nn


X = torch.ones(2, 4) / 3


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Counted(nn.Module):
    """A block that notes its calls and what it made last."""

    def __init__(self, number):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.number = number
        self.calls = 0
        self.last = None

    def body(self, x):
        self.calls += 1
        self.last = self.lin(x)
        return self.last.sin()


class Slot:
    def __init__(self, start=0):
        self.kept = torch.full((2, 4), float(start))
        self.flag = True

    def update(self, x):
        self.kept.mul_(0.5).add_(x)
        return self.kept


def loop(mark, body, count=5):
    marked = mark(body)

    def program(x):
        for i in range(count):
            x = marked(x, i)
        return x

    return program


def calling(mark, body, held, numbers):
    """A program that calls ``body`` with what is ``held`` and each of ``numbers`` in turn."""
    marked = mark(body)

    def program(x):
        for i in numbers:
            x = marked(x, held, i)
        return x

    return program


def indexing(mark, body, numbers=range(4)):
    """A program that calls ``body`` with four slots and each of ``numbers`` in turn."""
    slots = [Slot(k) for k in range(4)]
    return calling(mark, body, slots, numbers), slots


COUNT = 0
NAMES = {"layer0": 1.0, "layer1": 2.0, "layer2": 3.0}


def unused_number(mark):
    return loop(mark, lambda x, i: x.sin() + 1), None


def number_that_is_returned(mark):
    marked = mark(lambda x, i: (x.sin(), (i, i * 2 + 1, f"{i}", -i)))

    def program(x):
        found = []
        for i in range(5):
            x, told = marked(x, i)
            found.append(told)
        return x, found

    return program, None


def number_that_is_compared(mark):
    return loop(mark, lambda x, i: x.sin() if i % 2 == 0 and i < 3 else x.cos()), None


def number_that_is_used(mark):
    return loop(mark, lambda x, i: x * (i + 1)), None


def number_of_another_type(mark):
    marked = mark(lambda x, i: (x.sin(), i))
    return lambda x: [marked(x.cos(), i) for i in (1, True, 1.0, "1", 0, False, 0.0, -0.0)], None


def number_in_a_tuple(mark):
    marked = mark(lambda x, pair: (x.sin(), pair))
    return lambda x: [marked(x.cos(), (i, (x, str(i)))) for i in range(4)], None


def counter_in_a_global(mark):
    def body(x):
        global COUNT
        COUNT += 1
        return x.sin()

    marked = mark(body)

    def program(x):
        global COUNT
        COUNT = 3
        for _ in range(5):
            x = marked(x)
        return x, COUNT

    return program, None


def counter_that_is_looked_at(mark):
    def body(x):
        global COUNT
        COUNT += 2
        return x.sin() if COUNT % 3 == 0 else x.cos()

    marked = mark(body)

    def program(x):
        global COUNT
        COUNT = 0
        for _ in range(6):
            x = marked(x)
        return x, COUNT

    return program, None


def counter_in_a_cell(mark):
    count = 0

    def body(x):
        nonlocal count
        count = count + 1
        return x.sin()

    marked = mark(body)

    def program(x):
        nonlocal count
        count = 0
        for _ in range(5):
            x = marked(x)
        return x, count

    return program, None


def attributes_of_modules(mark):
    layers = nn.ModuleList(Counted(i) for i in range(4)).requires_grad_(False)
    marked = mark(Counted.body)

    def program(x):
        for layer in layers:
            x = marked(layer, x)
        return x, [(layer.calls, layer.last) for layer in layers]

    return program, layers


def attributes_of_an_object_that_is_shared(mark):
    stats = Plain(calls=0, last=None)

    def body(x, i):
        stats.calls += 1
        stats.last = i
        return x.sin()

    inner = loop(mark, body)
    return lambda x: (inner(x), stats.calls, stats.last), stats


def element_by_number(mark):
    return indexing(mark, lambda x, slots, i: (x + slots[i].kept).sin())


def element_by_number_that_is_written(mark):
    return indexing(mark, lambda x, slots, i: slots[i].update(x).sin() + x)


def element_that_was_known_before(mark):
    inner, slots = indexing(mark, lambda x, slots, i: slots[i].update(x).sin() + x)
    return lambda x: inner(x) if all(slot.flag for slot in slots) else x, slots


def element_by_number_and_by_name(mark):
    return indexing(mark, lambda x, slots, i: x + slots[i].kept * 2 + slots[0].kept)


def element_by_number_among_all(mark):
    return indexing(mark, lambda x, slots, i: x + slots[i].kept + sum(s.kept for s in slots if s.flag))


def element_that_is_also_an_argument(mark):
    slots = [Slot(k) for k in range(4)]
    marked = mark(lambda x, slots, first, i: x * slots[i].kept + first.kept)

    def program(x):
        for i in range(4):
            x = marked(x, slots, slots[1], i)
        return x

    return program, slots


def elements_in_pairs(mark):
    def body(x, slots, pair):
        one, other = (slots[i] for i in pair)
        return x * one.kept + other.kept + (1 if one is other else 0)

    return indexing(mark, body, ((0, 1), (1, 2), (2, 2), (3, 0), (0, 3)))


def element_of_a_dict_by_a_name_made_of_a_number(mark):
    marked = mark(lambda x, i: x * NAMES[f"layer{i}"])

    def program(x):
        for i in range(3):
            x = marked(x, i)
        return x

    return program, None


def element_of_a_changed_list(mark):
    slots = [Slot(k) for k in range(4)]
    marked = mark(lambda x, slots, i: x + slots[i].kept)

    def program(x):
        x = marked(marked(x, slots, 0), slots, 1)
        slots.insert(0, slots.pop())
        for i in range(4):
            x = marked(x, slots, i)
        return x

    return program, slots


def number_through_an_inner_region(mark):
    slots = [Slot(k) for k in range(4)]
    inner = mark(lambda x, slots, i: (x.sin() if i < 2 else x.cos(), i + 1))

    def outer(x, slots, i):
        x, j = inner(x, slots, i)
        x, j = inner(x * 2, slots, j)
        return x, j

    marked = mark(outer)

    def program(x):
        found = []
        for i in range(4):
            x, j = marked(x, slots, i)
            found.append(j)
        return x, found

    return program, slots


def statistics_of_a_batch_norm(mark):
    layers = nn.ModuleList(nn.BatchNorm1d(4) for _ in range(3)).requires_grad_(False)
    marked = mark(lambda layer, x: layer(x).sin())

    def program(x):
        for layer in layers:
            x = marked(layer, x)
        return x

    return program, layers


def appending(mark, body, *lists):
    marked = mark(body)

    def program(x):
        kept = [*map(list, lists)]
        for i in range(6):
            x = marked(x, i, *kept)
        return x, kept

    return program, None


def list_that_is_appended_to(mark):
    def body(x, i, kept):
        kept.append(i)
        kept.append((x.cos(), i + 1))
        return x.sin()

    return appending(mark, body, [])


def list_of_the_caller_that_is_appended_to(mark):
    kept = []
    marked = mark(lambda x, i, kept: (kept.append(i), x.sin())[1])

    def program(x):
        for i in range(6):
            x = marked(x, i, kept)
        return x

    return program, kept


def list_that_is_appended_to_and_read(mark):
    def body(x, i, kept):
        kept.append(i)
        return x.sin() if len(kept) % 2 else x.cos()

    return appending(mark, body, [])


def list_that_is_read_before_it_is_appended_to(mark):
    def body(x, i, kept):
        y = x * kept[-1]
        kept.append(2)
        return y

    return appending(mark, body, [1, 1])


def list_that_is_there_twice(mark):
    def body(x, i, one, other):
        one.append(i)
        return x * len(other)

    marked = mark(body)

    def program(x):
        kept = []
        for i in range(4):
            x = marked(x, i, kept, kept)
        return x, kept

    return program, None


def list_that_is_in_a_cell_too(mark):
    def program(x):
        kept = [1]

        def body(x, i, given):
            given.append(i)
            return x * len(kept)

        marked = mark(body)
        for i in range(4):
            x = marked(x, i, kept)
        return x, kept

    return program, None


def list_that_is_appended_to_in_an_inner_region(mark):
    def innermost(x, kept, i):
        kept.append(i)
        return x.sin()

    inner = mark(innermost)

    def outer(x, i, kept):
        x = inner(x, kept, i)
        return inner(x, kept, i * 2)

    return appending(mark, outer, [])


def list_that_is_returned(mark):
    def body(x, i, kept):
        kept.append(i)
        return x.sin(), kept

    marked = mark(body)

    def program(x):
        kept = []
        for i in range(4):
            x, same = marked(x, i, kept)
            same.append(same is kept)
        return x, kept

    return program, None


def number_that_an_inner_region_stores(mark):
    stored = 0

    def innermost(x, i):
        nonlocal stored
        stored = i * 3
        return {"x": x.sin(), "told": (i, [i + 1])}

    inner = mark(innermost)
    marked = mark(lambda x, i: inner(x, i))

    def program(x):
        nonlocal stored
        stored, found = 1, []
        for i in range(4):
            told = marked(x, i)
            x = told["x"]
            found.append((stored, told))
        return x, found

    return program, None


def number_that_is_a_key(mark):
    marked = mark(lambda x, i: (x.sin(), {i: 1}))
    return lambda x: [marked(x, i) for i in (0, 1, True, 2)], None


def numbers_by_factors_that_are_equal(mark):
    marked = mark(lambda x, f: x + math.copysign(1.0, f * 0.0) + 3 * math.copysign(1.0, f * -0.0))
    return lambda x: [marked(x, f) for f in (1.0, -1.0, 2.0, -0.0)], None


def element_from_the_end(mark):
    return indexing(mark, lambda x, slots, i: (x + slots[i].kept).sin(), (0, 1, -1, -3, 3))


def list_that_is_come_by_in_two_ways(mark):
    holder = Plain(kept=[])
    kept = holder.kept

    def body(x, i, one, other):
        one.append(i)
        other.append(i + 10)
        one.append(i + 20)
        return x.sin()

    marked = mark(body)

    def program(x):
        kept.append(0)
        holder.kept.append(1)
        for i in range(4):
            x = marked(x, i, holder.kept, kept)
        return x

    return program, kept


class Numbered(nn.Module):
    """A block with a number that finds its slot, a scale that is one of two, and a name that nothing reads."""

    def __init__(self, number):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.number, self.scale, self.name = number, (0.5, 2.0)[number % 2], f"layer{number}"

    def body(self, x, slots):
        kept = slots[self.number].update(x * self.scale)
        return (self.lin(x) + kept).sin(), self.name


def thirty_six_layers(mark):
    layers = nn.ModuleList(Numbered(i) for i in range(36)).requires_grad_(False)
    slots = [Slot() for _ in layers]
    marked = mark(Numbered.body)

    def program(x):
        names = []
        for layer in layers:
            x, name = marked(layer, x, slots)
            names.append(name)
        return x, names

    return program, slots


# How many of the calls are traced when the program is compiled; the others are stamped out.
PROGRAMS = {
    unused_number: 1,
    number_that_is_returned: 1,
    number_that_is_compared: 3,
    number_that_is_used: 5,
    number_of_another_type: None,
    number_in_a_tuple: None,
    counter_in_a_global: 1,
    counter_that_is_looked_at: None,
    counter_in_a_cell: None,
    attributes_of_modules: 2,
    attributes_of_an_object_that_is_shared: None,
    element_by_number: 1,
    element_by_number_that_is_written: 1,
    element_that_was_known_before: 2,
    element_by_number_and_by_name: None,
    element_by_number_among_all: None,
    element_that_is_also_an_argument: None,
    elements_in_pairs: None,
    element_of_a_dict_by_a_name_made_of_a_number: None,
    element_of_a_changed_list: None,
    number_through_an_inner_region: None,
    statistics_of_a_batch_norm: None,
    thirty_six_layers: 2,  # one for each scale
    list_that_is_appended_to: 1,
    list_of_the_caller_that_is_appended_to: 1,
    list_that_is_appended_to_and_read: None,
    list_that_is_read_before_it_is_appended_to: None,
    list_that_is_there_twice: None,
    list_that_is_in_a_cell_too: None,
    list_that_is_appended_to_in_an_inner_region: None,
    list_that_is_returned: None,
    number_that_an_inner_region_stores: None,
    number_that_is_a_key: None,
    numbers_by_factors_that_are_equal: None,
    element_from_the_end: None,
    list_that_is_come_by_in_two_ways: None,
}
