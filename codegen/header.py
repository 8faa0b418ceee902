"""header   the head of a program: its docstring, its constants and PLAN.

The docstring says what the program computes and how, how it was made and verified, and how it is
used and checked; nothing in it is computed with.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np

from codegen.layout import Form
from codegen.masks import mask_data
from codegen.programs import Options, Program
from codegen.reflow import filled
from planner.files.digest import digest
from planner.ir import TENSORS
from planner.layouts.peers import PEERS
from planner.loops.form import Exchange, Loops, Return, Root, Send, Shift
from planner.version import VERSION

WIDTH = 96
LONG = 40  # characters of a mask that the title holds
LONGEST = 90  # characters of a line of a command
SLOW = 2**12  # tokens from which a self-check takes minutes on CPUs
# with which versions kernels ran: on CPUs those of constraints.txt, on GPUs of benchmarks/results
CHIPS = "on one H100 and one H200"
RAN = {
    "torch": f"on CPUs with torch 2.13.0, {CHIPS} with torch 2.11.0+cu130",
    "cpu": "that of CPUs with jax 0.10.2",
    "gpu": f"cuDNN's and Triton's {CHIPS} with jax 0.11.2",
    "tpu": "splash attention in an interpreter with jax 0.10.2, on no TPU",
}


# ---- the docstring


def docstring(program: Program, usage: Sequence[str] = ()) -> str:
    """The docstring with its quotes; `usage`: lines of code, if not those of `attention`."""
    lines = [*_wrapped(plain(title(program))), ""]
    lines += [*(f"    {line}" for line in _command(program)), ""]
    lines += [*_wrapped(plain(" ".join(_made(program)))), ""]
    lines += [*(f"    {line}" for line in usage or _usage(program)), ""]
    lines += _wrapped(" ".join(_holds(program)))
    raw = "r" if any("\\" in line for line in lines) else ""
    return "\n".join([f'{raw}"""{lines[0]}', *lines[1:], '"""'])


def plain(text: str) -> str:
    """Text that cannot end a docstring, whatever a plan file calls its plan."""
    return "".join(c for c in text if c.isprintable() and c not in '"\\')


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False)


def title(program: Program) -> str:
    """Says the computation, the number of ranks, their layout and what travels."""
    work = program.work
    mask = str(work.mask)
    mask = mask if len(mask) <= LONG else f"{mask[:LONG]}..."
    what = f"Attention under the mask {mask}"
    what = f"{mask.capitalize()} attention" if mask.isidentifier() else what
    what = "Attention under a mask that tables give" if program.dynamic else what
    ranks = f"{program.ranks} rank{'s' if program.ranks > 1 else ''}"
    said = [_layout_name(program.layout.q), *_travels(program)]
    if program.any_plan:
        return f"{what}, over {ranks}: layout and messages by tables, too."
    return f"{what} over {ranks}: {', '.join(said)}."


def _layout_name(form: Form) -> str:
    over = f" of groups of {form.members} ranks" if form.members > 1 else ""
    grain = f" in stripes of {form.width}" if form.width > 1 and not form.pieces else ""
    return f"{form.name or 'its own'} layout{grain}{over}"


def _travels(program: Program) -> list[str]:
    if program.loops is None:
        return ["messages by tables"]
    return in_words(program.loops[0]) or ["nothing travels"]


def in_words(loops: Loops) -> list[str]:
    """The transfers of a pass, each in a few words, in the order of their first steps."""
    said = dict[str, None]()
    for s in sorted(loops.statements, key=lambda s: s.when.first):
        match s:
            case Exchange(tensors=tensors) if s.heads is None:
                said[f"{_named(tensors)} gathered"] = None
            case Exchange(tensors=tensors) if s.gathers:
                said[f"{_named(tensors)} gathered by heads"] = None
            case Exchange():
                said["heads exchanged all-to-all"] = None
            case Return():
                said["results sent back"] = None
            case Send(tensors=tensors, hop=Shift(), when=when):
                goes = "go around a ring" if when.last > when.first else "go to another rank"
                if TENSORS[tensors[0]].accumulates:
                    goes = "follow" if when.last > when.first else "return to their owners"
                said[f"{_named(tensors)} {goes}"] = None
            case Send(tensors=tensors, hop=Root()):
                said[f"{_named(tensors)} broadcast"] = None
    return [*said]


def _named(tensors: Sequence[str]) -> str:
    if TENSORS[tensors[0]].accumulates:
        return "partial results"
    return "keys and values" if TENSORS[tensors[0]].side == "kv" else "queries"


def _command(program: Program) -> Iterator[str]:
    """Returns the command that makes the file again, broken between words where it is long.

    Without one, the call in Python.
    """
    command = program.command or f"rl.emit(plan, {', '.join(_arguments(program))})"
    words = [plain(word) for word in re.findall(r"(?:'[^']*'|\S)+", command)]
    text = " ".join("MASK" if len(word) > LONGEST else word.replace(" ", "\0") for word in words)
    *lines, last = textwrap.wrap(
        text, LONGEST, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    lines, last = [f"{line} \\".replace("\0", " ") for line in lines], last.replace("\0", " ")
    yield from lines
    yield f"{last}  # MASK is PLAN['mask']" if max(map(len, words)) > LONGEST else last


def _arguments(program: Program) -> Iterator[str]:
    """Yields the arguments of `emit` that are not as usual, after the plan."""
    yield repr(program.target)
    usual = {field.name: field.default for field in fields(Program)}
    for name in Options.__annotations__:
        if (value := getattr(program, name)) != usual[name]:
            yield f"{name}={value!r}"


def _made(program: Program) -> Iterator[str]:
    """Where the file comes from and why it is right."""
    if program.any_plan:
        yield f"Generated by ringloom {VERSION}: change the command, not the file. Its schedule and"
        yield "mask give no more than a name: tables have theirs, and are made of verified plans."
        yield _ran(program)
        yield "SPDX-License-Identifier: Apache-2.0"
        return
    kind = "regular" if program.loops is not None else f"as tables, not loops: {program.irregular}"
    kind = "tables are an argument" if program.dynamic else kind
    yield f"Generated by ringloom {VERSION} from plan {digest(program.plans)} ({kind}): change the"
    yield f"{'command' if program.command else 'plan'}, not the file."
    both = "both passes" if program.backward else "the forward pass"
    yield f"Verified: every query meets every key it may see exactly once, in {both}."
    name = program.layout.q.name
    other = [peer for peer, where in PEERS.get(name, {}).items() if where and peer != name]
    if other:
        yield f"{name.capitalize()} is also called {', '.join(other)}."
    yield _ran(program)
    yield "SPDX-License-Identifier: Apache-2.0"


def _ran(program: Program) -> str:
    """Says with which versions the kernels of a program were run."""
    kinds = ("cpu", "gpu", "tpu") if program.platform == "all" else (program.platform,)
    kinds = kinds if program.loops is not None else ("cpu",)  # tables attend in jnp everywhere
    kinds = ("torch",) if program.target == "torch" else kinds
    return f"Kernels were run: {'; '.join(RAN[kind] for kind in kinds)}."


def _usage(program: Program) -> Iterator[str]:
    width = f"[batch, heads, tokens, {program.work.head_dim}]"
    trained = "differentiable; " if program.backward else ""
    tables = ", tables" if program.dynamic else ""
    sinks = ", sinks=sinks" if program.work.sinks else ""
    if program.target == "torch":
        yield f"{f'out = attention(q, k, v{tables}{sinks})':<31} # {trained}local shards {width}"
        yield f"{'q = shard(whole, rank)':<31} # a rank's part; unshard is the inverse"
    else:
        call = f"out = attention(q, k, v{tables}{sinks}, mesh=mesh)"
        yield f"{call:<40} # {trained}global arrays"
        yield "q = jnp.concatenate([shard(whole, rank) for rank in range(RANKS)], 2)"


def _holds(program: Program) -> Iterator[str]:
    """Says the lengths and types that the program takes, and the command that checks it."""
    heads = ", heads" * (program.any_heads and not program.any_plan)
    any_of = f"any batch{heads} and float type"
    many = program.layout.multiple
    length = f"any length that {many} divides" if many > 1 else "any length"
    length += f", from {program.least} on" * (program.least > many)
    length = length if program.free else "these lengths only"
    if program.dynamic:
        length = "any mask of these lengths"
        length = "any plan of these ranks and heads" if program.any_plan else length
    yield f"It holds for {any_of} and {length}."
    run = f"torchrun --nproc-per-node {program.ranks}" if program.target == "torch" else "python"
    what = "output and gradients" if program.backward else "the output"
    size = f" of {program.checked} token{'s' * (program.checked > 1)}" * (not program.any_plan)
    slow = ", which is slow on CPUs" * (program.checked >= SLOW and not program.any_plan)
    yield f"`{run} FILE` compares {what} with dense attention{size}{slow}."


# ---- constants


def constants(program: Program) -> str:
    """Sizes, PLAN and the data of the mask, as a module text."""
    work = program.work
    equal, own = work.seq == work.kv_seq, program.target == "torch" and not program.dynamic
    first = ["SEQ", *["KV_SEQ"] * equal, *["CHECKED"] * (own and not program.free)]
    seq = [f"{' = '.join(first)} = {work.seq}", *[f"KV_SEQ = {work.kv_seq}"] * (not equal)]
    ranks = f"RANKS = {program.ranks}"
    if program.free:
        seq[0] += "  # as planned; other lengths go, too"
    if program.free and own:
        ranks = f"RANKS, CHECKED = {program.ranks}, {program.checked}  # tokens, by the self-check"
    lines = [
        ranks,
        *seq,
        f"HEADS, KV_HEADS, HEAD_DIM = {work.heads}, {work.kv_heads}, {work.head_dim}",
        *[f"V_HEAD_DIM = {work.v_head_dim}  # of values and results"] * program.unequal,
        _scale(program),
        *_operator(program),
        *plan_literal(program),
        *mask_data(work, program.free).splitlines(),
    ]
    return "\n".join(lines) + "\n"


def _operator(program: Program) -> Iterator[str]:
    """The name of the operators in torch: of one plan, or of the sizes of any plan."""
    if program.target == "torch":
        work, version = program.work, re.sub(r"\W", "_", VERSION)
        sizes = program.ranks, work.heads, work.kv_heads, work.head_dim
        plan = "_".join(map(str, ("any", *sizes))) if program.any_plan else digest(program.plans)
        yield f'OPERATOR = "{plan}_{version}"'


def _scale(program: Program) -> str:
    work, scale = program.work, program.work.softmax_scale
    if program.signed:
        sign = int(np.sign(scale))
        return f"SCALE, SIGN = {abs(scale) or 1.0!r}, {sign}  # kernels mask before they scale"
    return f"SCALE = {work.head_dim}**-0.5" if work.scale is None else f"SCALE = {scale!r}"


def plan_literal(program: Program) -> Iterator[str]:
    """PLAN, a line for each kind of value; without what a dynamic program leaves to tables."""
    work, mask = program.work, str(program.work.mask)
    dims = ("head_dim", *["v_head_dim"] * program.unequal)
    kinds = () if program.any_plan else ("seq", "kv_seq"), ("heads", "kv_heads", *dims)
    lengths, sizes = ([f'"{f}": {getattr(work, f)}' for f in fields] for fields in kinds)
    sizes += ['"sinks": True'] * work.sinks
    sizes += [f'"scale": {work.softmax_scale!r}', f'"dtype": "{work.dtype}"']
    if program.max_calls is not None:
        sizes.append(f'"max_calls": {program.max_calls}')
    yield "PLAN = {"
    entries = [
        f'"name": "{plain(program.forward.name)[:80]}"',
        f'"ranks": {program.ranks}',
        *lengths,
    ]
    short = [] if program.dynamic else [f'"mask": "{mask}"']  # else the mask is in the tables
    long = [entry for entry in short if len(mask) > WIDTH - 16]
    yield from filled([*entries, *sizes, *(entry for entry in short if not long)])
    yield from _mask_literal(mask) if long else ()
    yield "}  # fmt: skip"


def _mask_literal(mask: str) -> Iterator[str]:
    size = WIDTH - 12
    yield '    "mask": ('
    yield from (f'        "{mask[a : a + size]}"' for a in range(0, len(mask), size))
    yield "    ),"
