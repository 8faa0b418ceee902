"""Traced   numbers and conditions of values that JAX traces, which Python cannot ask."""

from collections.abc import Sequence

from ringloom.codegen.words import Words


class Traced(Words):
    """The words of a rank that is traced, and of a step that may be."""

    def entry(self, name: str, index: str) -> str:
        """A number of data, by an index that is traced."""
        return f"jnp.array({name})[{index}]"

    def both(self, tests: Sequence[str]) -> str:
        """All of these, each in brackets: `&` binds closer than what compares."""
        return " & ".join(f"({test})" for test in tests) if len(tests) > 1 else "".join(tests)

    def chain(self, low: str, x: str, high: str) -> str:
        """(low <= x) & (x <= high)"""
        return f"({low} <= {x}) & ({x} <= {high})"

    def cyclic(self, low: str, x: str, high: str, ordered: bool | None) -> str:
        """Around the end of an axis."""
        inside, outside = self.chain(low, x, high), f"({x} >= {low}) | ({x} <= {high})"
        if ordered is None:
            return f"jnp.where({low} <= {high}, {inside}, {outside})"
        return inside if ordered else outside

    def among(self, x: str, name: str) -> str:
        """True if x is in data."""
        return f"jnp.isin({x}, jnp.array({name}))"
