"""Artifacts compiled under the overlay and under stock torch are never mixed up."""

from __future__ import annotations

import json

from testing.overlay_tools import run_code


COMPILE = """
    import json, sys, torch
    from torch._dynamo.utils import counters
    torch._functorch.config.enable_autograd_cache = True
    torch._inductor.config.fx_graph_cache = True
    {setup}
    with torch.no_grad():
        assert torch.allclose(
            torch.compile(lambda x: (x.sin() + 2) * 3)(torch.zeros(64)), torch.full((64,), 6.0)
        )
    counts = counters["inductor"] + counters["aot_autograd"]
    print(json.dumps({{name: counts[name] for name in (
        "fxgraph_cache_hit", "fxgraph_cache_miss", "autograd_cache_hit", "autograd_cache_miss")}}))
"""


def hit(folder, setting: str, setup: str = "", **env: str) -> bool:
    result = run_code(
        COMPILE.format(setup=setup),
        TORCH_REGIONS=setting,
        TORCHINDUCTOR_CACHE_DIR=str(folder),
        TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS="0",
        TORCHINDUCTOR_COMPILE_THREADS="1",
        **env,
    )
    assert not result.warnings, result.err
    counts = json.loads(result.out)
    assert counts["autograd_cache_hit"] + counts["autograd_cache_miss"] == 1, counts
    if counts["autograd_cache_hit"]:
        assert not counts["fxgraph_cache_miss"]
        return True
    assert not counts["fxgraph_cache_hit"], counts
    return False


def test_two_processes_one_cache_folder(tmp_path):
    assert not hit(tmp_path, "0")
    assert not hit(tmp_path, "1")
    assert hit(tmp_path, "0")
    assert hit(tmp_path, "1")
    mine = 'torch.compiler.config.cache_key_tag = "mine"'
    assert not hit(tmp_path, "1", mine)
    assert hit(tmp_path, "1", TORCH_COMPILE_CACHE_KEY_TAG="mine")
    assert not hit(tmp_path, "0", mine)


def test_another_digest_is_another_cache(toy, tmp_path):
    """Changing one overlay file is enough."""
    code = "import torch; print(torch.compiler.config.cache_key_tag)"
    before = toy.run(code).out
    assert before == toy.run(code).out and before.startswith("+torch-regions:")
    path = toy.root / "torch" / "_dynamo" / "added_by_the_overlay.py"
    text = path.read_text()
    try:
        path.write_text(text + "# changed\n")
        assert toy.run(code).out != before
    finally:
        path.write_text(text)


def test_the_value_of_the_user(tmp_path):
    run_code(
        """
        import sys, torch, unittest.mock
        from torch.compiler import config
        digest = config.cache_key_tag
        assert digest.startswith("+torch-regions:") and "torch._dynamo" not in sys.modules
        config.cache_key_tag = "mine"
        assert config.cache_key_tag == "mine" + digest
        with config.patch(cache_key_tag="other"):
            assert config.cache_key_tag == "other" + digest
            with config.patch({"cache_key_tag": config.cache_key_tag}):
                assert config.cache_key_tag == "other" + digest
        assert config.cache_key_tag == "mine" + digest
        with unittest.mock.patch.object(config, "cache_key_tag", "mocked"):
            assert config.cache_key_tag == "mocked" + digest
        assert config.cache_key_tag == "mine" + digest
        saved = config.save_config()
        assert config.get_config_copy()["cache_key_tag"] == "mine"
        config.cache_key_tag = ""
        assert config.cache_key_tag == digest
        config.load_config(saved)
        assert config.cache_key_tag == "mine" + digest
        revert = config._make_closure_patcher(cache_key_tag="quick")()
        assert config.cache_key_tag == "quick" + digest
        revert()
        assert config.cache_key_tag == "mine" + digest
        assert config.job_id is None and not hasattr(config, "no_such_option")
        from torch._inductor import codecache
        import torch._dynamo.pgo
        assert codecache.cconfig is config
        """
    )
    code = "import torch; print(torch.compiler.config.cache_key_tag)"
    assert run_code(code, TORCH_COMPILE_CACHE_KEY_TAG="env").out.startswith("env+torch-regions:")
    assert run_code(code, TORCH_COMPILE_CACHE_KEY_TAG="env", TORCH_REGIONS="0").out == "env\n"
