import pytest

from shapes import triangle


@pytest.mark.parametrize("n, dots", [(0, 0), (1, 1), (4, 10), (100, 5050)])
def test_triangle(n, dots):
    assert triangle(n) == dots
