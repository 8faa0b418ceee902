"""variables(loops, walked, keep)   names of what a pass holds: inputs that travel, running sums."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from codegen.lowered.sums import Cell, Walk
from codegen.lowered.variables import Value, input_spans, named, sum_spans
from codegen.text import numbered
from planner.loops.form import HELD, OWN, Loops, Part, Send, Start

INPUT = {"q": "queries", "kv": "kv"}
SUMS = {"OUT": "results", "DQ": "dq", "DKV": "dkv"}


@dataclass(frozen=True)
class Variables:
    """Python names by value and by cell; what a rank owns has none, it is named by tensors."""

    inputs: dict[Value, str] = field(default_factory=dict)
    cells: dict[Cell, str] = field(default_factory=dict)


def variables(loops: Loops, walked: Walk, keep: bool) -> Variables:
    """The names of one pass; `keep`: what exchanges bring is read again by the backward pass."""
    spans = {v: span for v, span in input_spans(loops).items() if v[1] != HELD}
    for side in ("q", "kv"):  # what is owned may be read once more beside a value of its name
        if own := spans.get((side, OWN)):
            spans[side, OWN] = own[0], own[1] - 4
    exchanges = loops.exchanges.values()
    for value in ((s.side, s.name) for s in exchanges if keep):
        spans[value] = spans[value][0], 4 * loops.steps
    douts = {("q", s.name): "dout" for s in exchanges if s.tensors == ("DOUT",)}
    inputs = named(
        {v: span for v, span in spans.items() if v not in douts},
        lambda v: numbered(INPUT[v[0]], f"visiting_{INPUT[v[0]]}"),
    )
    inputs = {v: name for v, name in inputs.items() if v[1] != OWN} | douts
    lives = sum_spans(walked, lambda cell, _: cell)
    lives |= {c: (first, 4 * loops.steps) for c, (first, _) in lives.items() if c[1] == OWN}
    cells = named(lives, lambda c: numbered(SUMS[c[0]], f"visiting_{SUMS[c[0]]}"))
    return Variables(inputs, cells)


def untouched(loops: Loops, inputs: Mapping[Value, str], s: Start, first: int) -> bool:
    """True if what begins may have its variable from step `first` on: nothing else has it."""
    if s.when.last == first:
        return True
    others = [x for x in loops.statements if isinstance(x, Start | Send) and x is not s]
    others = [x for x in others if any(map(x.when.on, range(first, s.when.first)))]
    names = {inputs.get((x.side, x.name)) for x in others if not x.sums}
    return s.part == Part(OWN) and inputs[s.side, s.name] not in names
