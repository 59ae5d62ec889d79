"""The release of torch, for the few places that depend on it."""

from __future__ import annotations

import torch


RELEASE = tuple(int(number) for number in torch.__version__.split(".")[:2])
