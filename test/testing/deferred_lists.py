"""Programs whose regions append to lists of the caller's, and reach them by other paths besides."""

from testing.deferred_programs import Plain


def _each(marked, *rows):
    """A program that calls ``marked`` with a number and each of ``rows`` in turn."""

    def program(x):
        for i, row in enumerate(rows):
            x = marked(x, i, *row)
        return x

    return program, rows


def the_same_list_each_time(mark):
    kept = []
    return _each(mark(lambda x, i, kept: (kept.append(i), x.sin())[1]), *[(kept,)] * 5)


def another_list_each_time(mark):
    return _each(mark(lambda x, i, kept: (kept.append(i), x.sin())[1]), *[([],) for _ in range(4)], ([1, 2],))


def a_list_that_nobody_looks_at(mark):
    return _each(mark(lambda x, i, kept: x.sin()), ([1],), ([],), (["a", None],), ([1],))


def a_list_whose_length_is_asked_for(mark):
    return _each(mark(lambda x, i, kept: x * len(kept)), ([1],), ([2],), ([],), ([3, 4],))


COUNT = 0


def a_number_of_calls_in_a_global(mark):
    """The first call finds the number as it was when the frame began."""

    def body(x, i):
        global COUNT
        COUNT += 2
        return x.sin()

    program, _ = _each(mark(body), *[()] * 5)

    def counting(x):
        return program(x), COUNT

    return _from_zero(counting), None


def a_number_of_calls_that_is_looked_at(mark):
    def body(x, i):
        global COUNT
        COUNT += 1
        return x * 2 if COUNT > 3 else x.sin()

    return _from_zero(_each(mark(body), *[()] * 5)[0]), None


def a_number_of_calls_that_is_used(mark):
    def body(x, i):
        global COUNT
        COUNT = COUNT * 2 + 1
        return x + COUNT

    return _from_zero(_each(mark(body), *[()] * 4)[0]), None


def a_number_of_calls_that_becomes_a_float(mark):
    def body(x, i):
        global COUNT
        COUNT = COUNT / 2
        return x.sin()

    program, _ = _each(mark(body), *[()] * 4)
    return _from_zero(lambda x: (program(x), COUNT)), None


def _from_zero(program):
    global COUNT
    COUNT = 0
    return program


def also_an_attribute(mark):
    """The first call appends to the list that its length is asked of afterwards; the second one to another."""

    def body(x, i, holder, kept):
        kept.append(i)
        return x * len(holder.kept)

    first, second, third = Plain(kept=[]), Plain(kept=[]), Plain(kept=[])
    return _each(mark(body), (first, first.kept), (second, []), (third, third.kept), (Plain(kept=[]), []))


def also_an_attribute_later(mark):
    """The first call appends to another list than it asks for its length; a later one to the same."""

    def body(x, i, holder, kept):
        kept.append(i)
        return x * len(holder.kept)

    second = Plain(kept=[])
    return _each(mark(body), (Plain(kept=[]), []), (second, second.kept), (Plain(kept=[]), []))


def also_in_a_cell_of_the_body(mark):
    kept = []

    def body(x, i, given):
        given.append(i)
        return x * len(kept)

    return _each(mark(body), ([],), (kept,), ([],), (kept,))


def also_an_attribute_that_is_appended_to(mark):
    def body(x, i, holder, kept):
        kept.append(i)
        holder.kept.append(i + 10)
        kept.append(i + 20)
        return x.sin()

    first, second = Plain(kept=[]), Plain(kept=[])
    return _each(mark(body), (first, first.kept), (second, []), (first, first.kept), (Plain(kept=[]), []))


def twice_among_the_arguments(mark):
    one, other = [], []

    def body(x, i, a, b):
        a.append(i)
        return x * (len(b) + 1)

    return _each(mark(body), (one, []), (other, other), ([], []), (other, other))


def twice_the_second_time(mark):
    one = []

    def body(x, i, a, b):
        a.append(i)
        b.append(-i)
        return x.sin()

    return _each(mark(body), ([], []), (one, one), ([], []), (one, one))


def inside_a_tuple_too(mark):
    one, other = [], []

    def body(x, i, a, rest):
        a.append(i)
        return x * (len(rest[0]) + 1)

    return _each(mark(body), (one, (one,)), (other, ([],)), ([], ([],)))


def compared_by_identity(mark):
    one = []

    def body(x, i, a, b):
        a.append(i)
        return x.sin() if a is b else x.cos()

    return _each(mark(body), (one, one), ([], []), (one, one), ([], []))


def through_an_inner_region(mark):
    inner = mark(lambda x, i, kept: (kept.append(i), x.sin())[1])

    def body(x, i, kept, holder):
        y = inner(x, i, kept)
        z = inner(y, i + 1, holder.kept)
        return z * len(holder.kept)

    holders = [Plain(kept=[]) for _ in range(4)]
    return _each(mark(body), *(([], h) for h in holders[:3]), (holders[3].kept, holders[3]))


def of_tensors_and_tuples(mark):
    def body(x, i, kept):
        y = x.sin()
        kept.append((y, i))
        kept.append(y.cos())
        return y

    kept = []
    return _each(mark(body), *[(kept,)] * 4)


# How many calls are traced; None: not said.
LISTS = {
    the_same_list_each_time: 1,
    another_list_each_time: 1,
    a_list_that_nobody_looks_at: 1,
    a_list_whose_length_is_asked_for: 3,
    of_tensors_and_tuples: 1,
    a_number_of_calls_in_a_global: 1,
    a_number_of_calls_that_is_looked_at: None,
    a_number_of_calls_that_is_used: None,
    a_number_of_calls_that_becomes_a_float: None,
    also_an_attribute: None,
    also_an_attribute_later: None,
    also_in_a_cell_of_the_body: None,
    also_an_attribute_that_is_appended_to: None,
    twice_among_the_arguments: None,
    twice_the_second_time: None,
    inside_a_tuple_too: None,
    compared_by_identity: None,
    through_an_inner_region: None,
}
