"""header   the head of a program: its docstring, its constants and PLAN.

The docstring says what the program computes and how, how it was made and verified, and how it is
used and checked; nothing in it is computed with.
"""

import textwrap
from collections.abc import Iterator, Sequence

from codegen.layout import Form, Ranges, Stripes, also_called
from codegen.masks import mask_data
from codegen.programs import Program
from planner.ir import TENSORS
from planner.loops.form import AllToAll, Gather, Loops, Return, Send, Shift, Table
from planner.masks import Causal, Full
from planner.version import VERSION
from planner.workload import Workload

WIDTH = 96
LONG = 40  # characters of a mask that the title holds
LONGEST = 90  # characters of a line of a command


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
    """What is computed by how many ranks, which layout they have and what travels."""
    work = program.work
    names = {Full(): "Full attention", Causal(): "Causal attention"}
    what = names.get(work.mask, f"Attention under the mask {short(str(work.mask))}")
    ranks = f"{program.ranks} rank{'s' if program.ranks > 1 else ''}"
    said = [_layout_name(program.layout.q), *_travels(program)]
    return f"{what} over {ranks}: {', '.join(said)}."


def short(text: str) -> str:
    """The beginning of a long text."""
    return text if len(text) <= LONG else f"{text[:LONG]}..."


def _layout_name(form: Form) -> str:
    name = also_called(form).split(" = ")[0] or "its own"
    members = 1 if isinstance(form, Ranges) else form.members
    over = f" of groups of {members} ranks" if members > 1 else ""
    grain = f" in stripes of {form.grain}" if isinstance(form, Stripes) and form.grain > 1 else ""
    return f"{name} layout{grain}{over}"


def _travels(program: Program) -> list[str]:
    if program.loops is None:
        return ["messages by tables"]
    return in_words(program.loops[0]) or ["nothing travels"]


def in_words(loops: Loops) -> list[str]:
    """The transfers of a pass, each in a few words, in the order of their first steps."""
    said = dict[str, None]()
    for s in sorted(loops.statements, key=lambda s: s.when.first):
        match s:
            case Gather(tensors=tensors):
                said[f"{_named(tensors)} gathered"] = None
            case AllToAll():
                said["heads exchanged all-to-all"] = None
            case Return(exchange=_):
                said["results sent back"] = None
            case Send(tensors=tensors, hop=Shift(), when=when):
                goes = "go around a ring" if when.last > when.first else "go to another rank"
                if TENSORS[tensors[0]].accumulates:
                    goes = "follow" if when.last > when.first else "go home"
                said[f"{_named(tensors)} {goes}"] = None
            case Send(tensors=tensors, hop=Table()):
                said[f"{_named(tensors)} go from rank to rank"] = None
    return [*said]


def _named(tensors: Sequence[str]) -> str:
    if TENSORS[tensors[0]].accumulates:
        return "partial results"
    return "keys and values" if TENSORS[tensors[0]].side == "kv" else "queries"


def _command(program: Program) -> Iterator[str]:
    """What makes the file again, broken by backslashes where it is long."""
    command = program.command or f"ringloom emit {program.target} plan.json{_options(program)}"
    words, line = [plain(word) for word in command.split()], ""
    cut = [word for word in words if len(word) > LONGEST]
    for word in ("MASK" if word in cut else word for word in words):
        if line and len(line) + 1 + len(word) > LONGEST:
            yield f"{line} \\"
            line = f"    {word}"
        else:
            line = f"{line} {word}" if line else word
    yield f"{line}  # MASK is PLAN['mask']" if cut else line


def _options(program: Program) -> str:
    said = [" --dynamic"] * program.dynamic + [" --layer"] * program.layer
    if program.platform != "all":
        said.append(f" --platform {program.platform}")
    return "".join(said)


def _made(program: Program) -> Iterator[str]:
    """Where the file comes from and why it is right."""
    work = program.work
    plan = (
        f"plan {program.digest}" if program.command else f"the plan {program.digest} in plan.json"
    )
    yield f"Generated by ringloom {VERSION} with this command from {plan}:"
    yield "change the command, not the file."
    yield f"Planned for {_tokens(work)}, {work.heads} query heads on {work.kv_heads} key-value"
    yield f"heads of {work.head_dim}, {work.dtype}."
    if called := also_called(program.layout.q):
        yield f"Layout: {called}."
    if program.loops is not None:
        yield "Regular: its loops give all rows of the plan."
    else:
        yield f"A table program: {program.irregular}."
    both = "both passes" if program.backward else "the forward pass"
    yield f"Verified: every query meets every key it may see exactly once, in {both}."
    yield "SPDX-License-Identifier: Apache-2.0"


def _tokens(work: Workload) -> str:
    if work.seq == work.kv_seq:
        return f"{work.seq} tokens"
    return f"{work.seq} queries and {work.kv_seq} keys"


def _usage(program: Program) -> Iterator[str]:
    width = f"[batch, heads, tokens, {program.work.head_dim}]"
    trained = "differentiable; " if program.backward else ""
    tables = ", tables" if program.dynamic else ""
    if program.target == "torch":
        yield f"{f'out = attention(q, k, v{tables})':<31} # {trained}local shards {width}"
        yield f"{'q = shard(whole, rank)':<31} # a rank's part; unshard is the inverse"
    else:
        yield f"{f'out = attention(q, k, v{tables}, mesh=mesh)':<40} # {trained}global arrays"
        yield "q = jnp.concatenate([shard(whole, rank) for rank in range(RANKS)], 2)"


def _holds(program: Program) -> Iterator[str]:
    """What the program is good for, and how it is checked."""
    heads = "any heads, " if program.any_heads else ""
    if program.free:
        many = program.layout.multiple
        length = "any length" if many == 1 else f"any length that {many} divides"
        yield f"The program holds for any batch, {heads}any float type and {length}."
    else:
        kind = "any heads and any float type" if heads else "any float type"
        yield f"The program holds for any batch, {kind}, and for these lengths only."
    what = "output and gradients" if program.backward else "the output"
    if program.target == "torch":
        yield "NCCL carries CUDA tensors, gloo those of CPUs."
        yield f"`torchrun --nproc-per-node {program.ranks} FILE` compares {what}"
        yield "with dense attention."
    else:
        yield f"`python FILE` compares {what} with dense attention on {program.ranks} devices."


# ---- constants


def constants(program: Program) -> str:
    """Sizes, the data of the mask, and PLAN, as a module text."""
    work = program.work
    seq = f"SEQ = {work.seq}"
    if program.free:
        seq += "  # as planned; other lengths go, too"
    lines = [
        f"RANKS = {program.ranks}",
        seq,
        f"KV_SEQ = {work.kv_seq}",
        f"HEADS, KV_HEADS, HEAD_DIM = {work.heads}, {work.kv_heads}, {work.head_dim}",
        f"SCALE = {_scale(work)}",
        *mask_data(work, program.free).splitlines(),
        *plan_literal(program),
    ]
    return "\n".join(lines) + "\n"


def _scale(work: Workload) -> str:
    return f"{work.head_dim}**-0.5" if work.scale is None else repr(work.softmax_scale)


def plan_literal(program: Program) -> Iterator[str]:
    """PLAN, a value per line."""
    work = program.work
    yield "PLAN = {"
    yield f'    "name": "{plain(program.name)[:80]}",'
    yield f'    "ranks": {program.ranks},'
    for field in ("seq", "kv_seq", "heads", "kv_heads", "head_dim"):
        yield f'    "{field}": {getattr(work, field)},'
    yield from _mask_text(str(work.mask))
    yield f'    "dtype": "{work.dtype}",'
    if program.max_calls is not None:
        yield f'    "max_calls": {program.max_calls},'
    yield "}"


def _mask_text(text: str) -> Iterator[str]:
    if len(text) <= WIDTH - 16:
        yield f'    "mask": "{text}",'
        return
    size = WIDTH - 12
    yield '    "mask": ('
    yield from (f'        "{text[a : a + size]}"' for a in range(0, len(text), size))
    yield "    ),"
