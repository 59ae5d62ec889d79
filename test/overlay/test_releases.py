"""One tree for several releases of torch: rows for some of them, names that one lacks, digests kept for the others."""

from __future__ import annotations

import dataclasses

import pytest
from testing.overlay_tools import RELEASE, TORCH, VERSION, run_python

from torch_regions import _manifest, _refresh, _verify
from torch_regions._errors import ManifestError
from torch_regions._files import overlay_files


OTHER = "0.1.0"
FILE = """
    from torch_regions.overlay import replaces, stock

    @replaces
    def detect_fake_mode(inputs=None):
        return "ours"

    @replaces("TracingContext.that_no_release_has")
    @staticmethod
    def _gone():
        return "ours"

    @replaces
    def that_no_release_has():
        return "ours"
"""


def _row(symbol, releases=None, always=True):
    return (
        f'[[replacement]]\ntarget = "torch._guards:{symbol}"\nkind = "symbol"\ngroup = "core"\n'
        + (f"releases = {releases}\n" if releases else "")
        + ('always = "a test"\n' if always else "")
        + 'purpose = "A test."\nremove_when = "Never."\n'
        + f'sha256 = {{"{OTHER}" = "0"}}\n'
    )


def _toy_for(toy, here):
    """An overlay whose row for a function that stock has is for ``here``; two others are for another release."""
    toy.file("_guards.py", FILE)
    rows = _row("detect_fake_mode", here)
    rows += _row("TracingContext.that_no_release_has", [OTHER]) + _row("that_no_release_has", [OTHER])
    toy.manifest.write_text(f'format = 1\n[torch]\nreleases = ["{OTHER}", "{RELEASE}"]\n' + rows)
    _refresh.refresh(str(toy.root), str(TORCH), VERSION)
    return toy


SHOW = """
    import torch, torch._dynamo, torch._guards as guards, torch_regions
    assert torch_regions.status().active, torch_regions.status()
    assert not hasattr(guards, "that_no_release_has")
    assert not hasattr(guards.TracingContext, "that_no_release_has")
    print(guards.detect_fake_mode([]))
"""


def test_a_row_for_another_release_stays_stocks(empty_toy):
    """Also where this release has no such function, or method."""
    assert _toy_for(empty_toy, [OTHER]).run(SHOW).out.strip() == "None"


def test_a_row_for_this_release_is_used_beside_rows_for_others(empty_toy):
    result = _toy_for(empty_toy, [OTHER, RELEASE]).run(SHOW)
    assert result.out.strip() == "ours" and not result.warnings


def test_digests_of_other_releases_are_kept(empty_toy):
    manifest = _manifest.load(str(_toy_for(empty_toy, None).manifest))
    hashes = {row.symbol: row.sha256 for row in manifest.rows}
    assert hashes["detect_fake_mode"].keys() == {OTHER, RELEASE} and hashes["detect_fake_mode"][OTHER] == "0"
    assert hashes["that_no_release_has"].keys() == {OTHER}
    assert manifest.not_for(RELEASE) == {row.target for row in manifest.rows if row.symbol != "detect_fake_mode"}


NEW = """
    from torch_regions.overlay import replaces
    from torch._guards import _that_only_another_release_has

    VALUE = 1
"""


def test_a_name_that_a_release_lacks_is_absent_there(empty_toy):
    """`refresh` writes it down, and a release that has the name after all differs."""
    empty_toy.file("_dynamo/of_ours.py", NEW)
    use = "torch._guards:_that_only_another_release_has"
    empty_toy.manifest.write_text(
        f'format = 1\n[torch]\nreleases = ["{OTHER}", "{RELEASE}"]\n[[replacement]]\n'
        'target = "torch._dynamo.of_ours"\nkind = "new"\ngroup = "core"\npurpose = "A test."\nremove_when = "Never."\n'
        f'[replacement.uses]\n"{use}" = {{"{OTHER}" = "0"}}\n'
    )
    assert not _refresh.refresh(str(empty_toy.root), str(TORCH), VERSION)
    manifest = _manifest.load(str(empty_toy.manifest))
    assert manifest.hashes()[use] == {OTHER: "0", RELEASE: _manifest.ABSENT}
    files = overlay_files(str(empty_toy.root))
    assert not _verify.verify(files, manifest, str(TORCH), VERSION)
    text = empty_toy.manifest.read_text().replace(use, "torch._guards:detect_fake_mode")
    parsed = dataclasses.replace(_manifest.parse(text), stock_files={})
    found = _verify.verify(files, parsed, str(TORCH), VERSION)
    assert [(each.what, each.problem) for each in found] == [("torch._guards:detect_fake_mode", _verify.DIFFERS)]


def test_only_symbols_can_be_for_some_releases():
    row = '[[replacement]]\ntarget = "torch.a"\nkind = "new"\ngroup = "core"\npurpose = "p"\nremove_when = "r"\n'
    with pytest.raises(ManifestError, match="only a row of the kind 'symbol'"):
        _manifest.parse(f'format = 1\n[torch]\nreleases = []\n{row}releases = ["1.0"]\n')


@pytest.mark.parametrize("where", [TORCH, TORCH.parent])
def test_another_torch_is_verified_without_running_it(where):
    result = run_python("-m", "torch_regions", "verify", "--against", str(where))
    assert f"match torch {VERSION}" in result.out


def test_a_folder_without_torch_is_named(tmp_path):
    result = run_python("-m", "torch_regions", "verify", "--against", str(tmp_path), check=False)
    assert result.code == 1 and "is neither torch's folder" in result.err
