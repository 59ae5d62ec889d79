"""torch.utils._traceback: the short name of a file is found once."""

import os
import pathlib

import pytest
import torch._dynamo
from torch.utils import _traceback


pytestmark = pytest.mark.usefixtures("with_regions")


FOLDER = os.path.dirname(torch.__file__)
HERE = os.path.abspath(__file__)
INSIDE = os.path.abspath(torch.__file__)


class Path(str):
    """A string of the program's: what it says of itself may change."""


PATHS = [
    HERE,
    INSIDE,
    FOLDER,
    os.path.join(FOLDER, "nn", "modules", "module.py"),
    "",
    "/",
    "relative.py",
    "<eval_with_key>.12",
    "<string>",
    HERE + "/../x.py",
    Path(INSIDE),
    pathlib.PurePath(INSIDE),
    INSIDE.encode(),
    None,
    7,
]


def _of(way, *args, **options):
    """Result or error, and its class."""
    try:
        found = way(*args, **options)
    except Exception as e:
        return type(e), str(e)
    return type(found), found


def _without_what_is_common(path, base=None):
    """``path`` behind the folders that it shares with ``base``, which is torch's where none is given."""
    try:
        shared = os.path.commonpath((path, FOLDER if base is None else base))
    except ValueError:
        return path
    return path[len(shared) + 1 :]


@pytest.mark.parametrize("path", PATHS, ids=repr)
@pytest.mark.parametrize("base", [None, os.path.dirname(HERE), "", "relative"])
def test_a_short_name_depends_on_the_path_alone(path, base):
    for _ in range(2):
        for options in ({"base": base}, {}):
            wanted = _of(_without_what_is_common, path, **options)
            assert _of(_traceback.shorten_filename, path, **options) == wanted


def test_a_file_is_looked_at_once():
    before = _traceback._short.cache_info()
    for _ in range(5):
        _traceback.shorten_filename("/somewhere/else.py")
    after = _traceback._short.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 4)
