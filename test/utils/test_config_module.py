"""An option has the value that stock reads, whatever kind of option it is."""

import warnings

import pytest
import torch
import torch._dynamo.config
import torch._functorch.config
import torch._inductor.config
import torch.compiler.config
import torch.fx.experimental._config
from torch.utils._config_module import ConfigModule

from torch_regions.overlay import stock


MODULES = [
    torch._dynamo.config,
    torch._functorch.config,
    torch._inductor.config,
    torch.compiler.config,
    torch.fx.experimental._config,
]


def as_stock(module, name):
    return stock("torch.utils._config_module:ConfigModule.__getattr__")(module, name)


def test_stock_is_replaced():
    assert ConfigModule.__getattr__ is not stock("torch.utils._config_module:ConfigModule.__getattr__")


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_each_option_has_the_value_that_stock_reads(module):
    seen = 0
    for name, entry in vars(module)["_config"].items():
        if entry.hide or name == "cache_key_tag":  # the tag is the overlay's own
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = ConfigModule.__getattr__(module, name)
            assert value is as_stock(module, name) or value == as_stock(module, name), name
        seen += 1
    assert seen


def test_an_option_that_is_set_or_patched():
    config = torch._dynamo.config
    before = config.recompile_limit
    with config.patch(recompile_limit=before + 1, accumulated_recompile_limit=0):
        assert (config.recompile_limit, config.accumulated_recompile_limit) == (before + 1, 0)
    assert config.recompile_limit == before
    try:
        config.recompile_limit = 3
        assert config.recompile_limit == 3
    finally:
        config.recompile_limit = before


def test_a_list_is_given_out_as_one_that_may_be_changed():
    module = torch._inductor.config
    name = next(n for n, e in vars(module)["_config"].items() if isinstance(e.default, list) and not e.hide)
    assert getattr(module, name) is getattr(module, name)
    assert getattr(module, name) is not vars(module)["_config"][name].default


def test_what_is_no_option():
    with pytest.raises(AttributeError, match="no_such_option"):
        torch._dynamo.config.no_such_option
    assert not hasattr(torch._dynamo.config, "no_such_option")


def test_a_deprecated_option_warns():
    module = torch._dynamo.config
    entry = vars(module)["_config"]["recompile_limit"]
    try:
        entry.deprecated = True
        with pytest.warns(FutureWarning, match="recompile_limit"):
            assert module.recompile_limit == as_stock(module, "recompile_limit")
    finally:
        entry.deprecated = entry._deprecation_warned = False
