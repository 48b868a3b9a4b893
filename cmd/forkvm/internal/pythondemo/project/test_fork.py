import os
import pathlib

from shapes import triangle

FORK = int(os.environ["FORK"])
MARK = pathlib.Path("/var/tmp/forkvm-demo")


def test_no_other_fork_was_here():
    assert not MARK.exists()
    MARK.write_text(str(FORK))
    assert MARK.read_text() == str(FORK)


def test_own_number():
    assert triangle(FORK) == sum(range(FORK + 1))
