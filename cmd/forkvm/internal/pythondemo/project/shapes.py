"""What the tests of the demo are about."""


def triangle(n):
    """The number of dots in a triangle with n rows."""
    return n * (n + 1) // 2
