"""Keys, Prefix and Global: masks with a special rule for the first tokens."""

from dataclasses import dataclass

from ringloom.planner.errors import PlanError
from ringloom.planner.masks.mask import ALL, Mask
from ringloom.planner.masks.regions import FAR, Region


@dataclass(frozen=True, repr=False)
class Keys(Mask):
    """Every query sees the first `n` keys; the other keys are padding.

    All batch rows share one mask, so a number per row raises PlanError.
    """

    forms = ("keys:N",)
    definition = "i * 0 + j < {n}"

    n: int

    def __post_init__(self) -> None:
        if hasattr(self.n, "__len__"):
            raise PlanError(
                f"{len(self.n)} numbers of keys, but all batch rows share one mask:"
                " pack the rows into documents"
            )
        super().__post_init__()

    def region(self) -> Region:
        return Region.of([(*ALL, -FAR, self.n, *ALL)])

    @classmethod
    def parse(cls, text: str) -> Mask:
        if "," in text:
            return cls(text.split(","))  # type: ignore[arg-type]
        return super().parse(text)


@dataclass(frozen=True, repr=False)
class Prefix(Mask):
    """A query sees the first `n` keys and all keys up to its own position."""

    forms = ("prefix:N",)
    from_zero = True
    definition = "(j < {n}) | (j <= i)"

    n: int

    def region(self) -> Region:
        return Region.of([(0, FAR, -FAR, self.n, *ALL), (0, FAR, self.n, FAR, -FAR, 0)])


@dataclass(frozen=True, repr=False)
class Global(Mask):
    """The first `n` queries see every key, and every query sees the first `n` keys."""

    forms = ("global:N",)
    from_zero = True
    definition = "(i < {n}) | (j < {n})"

    n: int

    def region(self) -> Region:
        return Region.of([(0, self.n, *ALL, *ALL), (self.n, FAR, -FAR, self.n, *ALL)])
