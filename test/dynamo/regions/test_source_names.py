"""Names of sources, as the user writes them."""

import pytest
from torch._dynamo.regions.source_names import name_of_source, readable


@pytest.mark.parametrize(
    "name, shown",
    [
        ("L['self']._modules['layers']._modules['0'].scale", "self.layers[0].scale"),
        ("L['self'].layers.12.norm", "self.layers[12].norm"),
        ("L['model']._parameters['weight']", "model.weight"),
        ("G['table'][3]['a']", "table[3]['a']"),
        ("CONSTANT_MATCH on L['self'].scale: 0.2, not 0.1", "CONSTANT_MATCH on self.scale: 0.2, not 0.1"),
        ("no source at all, 0.25", "no source at all, 0.25"),
    ],
)
def test_readable(name, shown):
    assert readable(name) == shown


def test_a_source_without_a_name_has_none():
    class Nameless:
        @property
        def name(self):
            raise NotImplementedError

    assert (name_of_source(Nameless()), name_of_source(None)) == ("", "")
