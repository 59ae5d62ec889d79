"""Programs that call gc.freeze() before the compiler is imported: the walk for holders of replaced objects sees theirs too."""

from __future__ import annotations

import textwrap

from testing.overlay_tools import STALE


def test_holders_that_are_frozen_are_found(toy):
    code = textwrap.dedent(STALE) + textwrap.dedent(
        """
        import torch
        import torch._guards as guards
        kept = [guards.detect_fake_mode]
        class Mine:
            held = guards.detect_fake_mode
        gc.freeze()
        frozen = gc.get_freeze_count()
        import torch._dynamo
        ours = guards.detect_fake_mode
        assert status().active and status().stale == (), status()
        assert kept[0] is ours and Mine.held is ours
        assert gc.get_freeze_count() >= frozen
        gc.unfreeze()
        found = [each for each in holders() if "kept" not in each[2]]
        assert not found, found
        """
    )
    assert not toy.run(code).warnings
