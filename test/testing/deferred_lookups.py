"""Programs whose regions look a number up by ``get``, or after a question of how large it is.

Each takes a mark, as in deferred_programs.py.
"""

from testing.deferred_programs import Plain, Slot, loop


FLAGS = dict.fromkeys(range(5), True)
SOME = {1: 2.0, 3: 4.0}
MIXED = {0: 2.0, 1: 2.0, 2: 3.0, 3: 2.0, 4: 2.0}


def flag_by_get(mark):
    return loop(mark, lambda x, i: x.sin() if FLAGS.get(i) else x.cos()), None


def number_by_get(mark):
    return loop(mark, lambda x, i: x * MIXED.get(i, 7.0)), None


def number_by_get_that_may_not_be_there(mark):
    return loop(mark, lambda x, i: x * SOME.get(i, 7.0)), None


def none_by_get(mark):
    return loop(mark, lambda x, i: x.sin() if SOME.get(i) is None else x.cos()), None


def slot_by_get(mark):
    slots = {k: Slot(k) for k in range(5)}
    return loop(mark, lambda x, i: slots.get(i).update(x).sin() + x), list(slots.values())


def slot_by_get_and_by_index(mark):
    slots = {k: Slot(k) for k in range(5)}
    return loop(mark, lambda x, i: slots.get(i).update(x).sin() + slots[i].kept), list(slots.values())


def get_that_is_held(mark):
    get = FLAGS.get
    return loop(mark, lambda x, i: x.sin() if get(i) else x.cos()), None


def get_that_is_passed_on(mark):
    def ask(get, i):
        return get(i, False)

    return loop(mark, lambda x, i: x.sin() if ask(FLAGS.get, i) else x.cos()), None


def get_of_what_the_region_writes(mark):
    seen = {}

    def body(x, i):
        seen[i] = i
        return x * (seen.get(i - 1, 3) + 1)

    return loop(mark, body), seen


def get_of_what_the_frame_writes(mark):
    seen = dict.fromkeys(range(5), 1.0)
    marked = mark(lambda x, i: x * seen.get(i))

    def program(x):
        for i in range(5):
            seen[i] = i + 2.0
            x = marked(x, i)
        return x

    return program, seen


def get_by_a_keyword_fails(mark):
    def body(x, i):
        try:
            return x * FLAGS.get(key=i)
        except TypeError:
            return x.cos()

    return loop(mark, body), None


def _numbered(mark, body, numbers=(0, 1, 2, 3, 3)):
    """A program that calls ``body`` with layers that have a number each."""
    marked, layers, slots = mark(body), [Plain(number=n, limit=n % 2 + 2) for n in numbers], [Slot(k) for k in range(4)]

    def program(x):
        for layer in layers:
            x = marked(x, layer, slots)
        return x

    return program, [layers, slots]


def slot_if_it_is_there(mark):
    def body(x, layer, slots):
        if layer.number >= len(slots):
            return x.cos()
        return slots[layer.number].kept + x.sin()

    return _numbered(mark, body)


def slot_if_it_is_there_and_some_are_not(mark):
    def body(x, layer, slots):
        return x.cos() if len(slots) <= layer.number else slots[layer.number].kept + x.sin()

    return _numbered(mark, body, (0, 5, 1, 9, 3))


def number_that_is_also_read(mark):
    return _numbered(mark, lambda x, layer, slots: x * layer.number if layer.number < 9 else x)


def numbers_that_are_put_in_order(mark):
    return _numbered(mark, lambda x, layer, slots: x.sin() if layer.number < layer.limit else x.cos())


def answer_that_is_kept(mark):
    def body(x, layer, slots):
        layer.late = layer.number > 1
        return x.sin()

    return _numbered(mark, body)


def number_that_the_frame_changes(mark):
    marked = mark(lambda x, layer: x.sin() if layer.number > 2 else x.cos())
    layers = [Plain(number=n) for n in range(4)]

    def program(x):
        for layer in layers:
            layer.number += 1
            x = marked(x, layer)
        return x

    return program, layers


# Each with how many calls are traced; None if that depends on the calls.
PROGRAMS = {
    flag_by_get: 1,
    number_by_get: None,
    number_by_get_that_may_not_be_there: None,
    none_by_get: None,
    slot_by_get: 1,
    slot_by_get_and_by_index: None,
    get_that_is_held: None,
    get_that_is_passed_on: None,
    get_of_what_the_region_writes: None,
    get_of_what_the_frame_writes: None,
    get_by_a_keyword_fails: None,
    slot_if_it_is_there: 1,
    slot_if_it_is_there_and_some_are_not: 2,
    number_that_is_also_read: None,
    numbers_that_are_put_in_order: 2,
    answer_that_is_kept: 3,
    number_that_the_frame_changes: None,
}
