"""Traced   numbers and conditions on values that JAX traces and Python cannot test."""

from collections.abc import Sequence

from ringloom.codegen.words import Words


class Traced(Words):
    """The words for traced ranks, and for steps that may be traced."""

    def index_data(self, name: str, index: str) -> str:
        """Returns an element of an array at a traced index."""
        return f"jnp.array({name})[{index}]"

    def join_tests(self, tests: Sequence[str]) -> str:
        """Joins tests by `&`, in brackets, because `&` binds more tightly than comparisons."""
        return " & ".join(f"({test})" for test in tests) if len(tests) > 1 else "".join(tests)

    def chain(self, low: str, x: str, high: str) -> str:
        """Returns (low <= x) & (x <= high)."""
        return f"({low} <= {x}) & ({x} <= {high})"

    def cyclic(self, low: str, x: str, high: str, ordered: bool | None) -> str:
        """Returns the test of an interval that may wrap around the end of an axis."""
        inside, outside = self.chain(low, x, high), f"({x} >= {low}) | ({x} <= {high})"
        if ordered is None:
            return f"jnp.where({low} <= {high}, {inside}, {outside})"
        return inside if ordered else outside

    def contains(self, x: str, name: str) -> str:
        """Returns the test that x is in an array."""
        return f"jnp.isin({x}, jnp.array({name}))"
