"""Names of bars, kept as whole numbers: a timeline has ten thousands, a reader looks at one.

As texts they take ten times as long to draw anew (benchmarks/bench_explore.py).

A name is a form's first words, a list, its other words, a second list: "q " 0 " x kv " 3,4.
`page/bar_name.js` puts it together in the browser, `texts` does here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.partitions import Ints
from ringloom.report.facts.lists import Lists, chained, lists

Form = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Names:
    """Names by columns: name n is of `forms[form[n]]`, with `first[n]` and `second[n]` in it."""

    forms: tuple[Form, ...]
    form: NDArray[np.int32]
    first: Lists
    second: Lists

    def __len__(self) -> int:
        return len(self.form)

    def __getitem__(self, rows: NDArray[np.intp]) -> "Names":
        return Names(self.forms, self.form[rows], self.first[rows], self.second[rows])

    def texts(self) -> list[str]:
        """The names themselves."""
        forms = (self.forms[n] for n in self.form.tolist())
        parts = zip(forms, self.first.texts(), self.second.texts(), strict=True)
        return [f"{begin}{a}{middle}{b}" for (begin, middle), a, b in parts]

    def columns(self) -> dict[str, list[Any]]:
        """Returns the columns that `page/bar_name.js` reads."""
        forms: dict[str, list[Any]] = {"forms": [[*map(list, self.forms)]], "form": [self.form]}
        return forms | self.first.columns("first") | self.second.columns("second")


def tabled(parts: Sequence[tuple[Form, Ints, Ints]]) -> Names:
    """Names of one form after the other, their lists the rows of two tables [names, width]."""
    forms = {form: n for n, form in enumerate(dict.fromkeys(form for form, _, _ in parts))}
    return Names(
        tuple(forms),
        np.repeat(
            np.array([forms[form] for form, _, _ in parts], np.int32),
            [len(first) for _, first, _ in parts],
        ),
        lists([first for _, first, _ in parts]),
        lists([second for _, _, second in parts]),
    )


def verbatim(texts: Sequence[str]) -> Names:
    """Names that are what they are."""
    known = {text: n for n, text in enumerate(dict.fromkeys(texts))}
    form = np.array([known[text] for text in texts], np.int32)
    nothing = lists([np.zeros((len(texts), 0), np.int32)])
    return Names(tuple((text, "") for text in known), form, nothing, nothing)


def joined(parts: Iterable[Names]) -> Names:
    """The names of several, in turn; a form that many share is kept once."""
    tables = [*parts, verbatim([])]
    forms = {form: n for n, form in enumerate(dict.fromkeys(chain(*(p.forms for p in tables))))}
    codes = [np.array([forms[form] for form in p.forms], np.int32)[p.form] for p in tables]
    return Names(
        tuple(forms),
        np.concatenate(codes),
        chained([p.first for p in tables]),
        chained([p.second for p in tables]),
    )
