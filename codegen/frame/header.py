"""header   the start of a program: its docstring, its constants and PLAN.

The docstring says what the program computes and how, how it was generated and verified, and how to
use and check it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from shlex import quote, split

import numpy as np

from ringloom.codegen.frame.layout import Form
from ringloom.codegen.frame.masks import mask_data
from ringloom.codegen.frame.packed import literal
from ringloom.codegen.programs import Options, Program
from ringloom.planner.files.digest import digest
from ringloom.planner.ir import TENSORS
from ringloom.planner.layouts.peers import PEERS
from ringloom.planner.loops.form import Exchange, Loops, Return, Root, Send, Shift
from ringloom.planner.version import VERSION

LONG = 40  # characters of a mask in the title
LONGEST = 80  # characters of a word of a command, or of a reason
SLOW = 2**12  # tokens from which a self-check takes minutes on CPUs
# Tested versions: on CPUs those of constraints.txt, on GPUs those of benchmarks/results.
CHIPS = "on an H100 and an H200"
RAN = {
    "torch": f"Kernels tested on CPUs with torch 2.13.0, {CHIPS} with torch 2.11.0+cu130.",
    "cpu": "CPU kernel tested with jax 0.10.2.",
    "gpu": f"cuDNN and Triton kernels tested {CHIPS} with jax 0.11.2.",
    "tpu": "Splash attention tested in interpret mode with jax 0.10.2, not on a TPU.",
}


# ---- the docstring


def docstring(program: Program) -> str:
    """Returns the docstring with its quotes."""
    command = [*_command(program)]
    lines = [
        *(plain(line) for line in title(program)),
        "",
        *(f"    {line}" for line in command),
        "",
        *_made(program),
        "",
        *(f"    {line}" for line in _usage(program)),
        "",
        *_limits(program),
    ]
    raw = "r" * (len(command) > 1)  # lines go on behind a backslash
    return "\n".join([f'{raw}"""{lines[0]}', *lines[1:], '"""'])


def plain(text: str) -> str:
    """Returns the text without characters that could end a docstring."""
    return "".join(c for c in text if c.isprintable() and c not in {'"', "\\"})


def shortened(text: str, most: int) -> str:
    """Returns a text, truncated if long."""
    return text if len(text) <= most else f"{text[:most]}..."


def title(program: Program) -> Iterator[str]:
    """Yields the computation and the number of ranks, then the layout and what is sent."""
    mask = str(program.work.mask)
    what = f"Attention under the mask {shortened(mask, LONG)}"
    what = f"{mask.capitalize()} attention" if mask.isidentifier() else what
    what = "Attention under a mask given by tables" if program.dynamic else what
    yield f"{what} over {program.ranks} rank{'s' if program.ranks > 1 else ''}."
    yield ""
    if program.any_plan:
        yield "Tables also give the layout and the messages."
        return
    for said in [_layout_name(program.layout.q), *_travels(program)]:
        yield f"{said[0].upper()}{said[1:]}."


def _layout_name(form: Form) -> str:
    over = f" of groups of {form.members} ranks" if form.members > 1 else ""
    grain = f" in stripes of {form.width}" if form.width > 1 and not form.pieces else ""
    return f"{form.name or 'custom'} layout{grain}{over}"


def _travels(program: Program) -> list[str]:
    if program.loops is None:
        return ["messages given by tables"]
    return in_words(program.loops[0]) or ["no communication"]


def in_words(loops: Loops) -> list[str]:
    """Describes the transfers of a pass, in the order of their first steps."""
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
                goes = "rotate in a ring" if when.last > when.first else "go to another rank"
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
    """Yields the command that generates the file, one option per line, or the Python call."""
    if not program.command:
        yield f"rl.emit(plan, {', '.join(_arguments(program))})"
        return
    lines, more = list[str](), ""
    for word in map(quote, split(program.command)):
        if len(word) > LONGEST:
            word, more = "MASK", "  # MASK is PLAN['mask']"
        if lines and word[:2] != "--":
            lines[-1] += f" {plain(word)}"
        else:
            lines.append(plain(word))
    first, *others = lines
    lines = [first, *(f"    {line}" for line in others)]
    yield from (f"{line} \\" for line in lines[:-1])
    yield lines[-1] + more


def _arguments(program: Program) -> Iterator[str]:
    """Yields the arguments of `emit` after the plan that are not defaults."""
    yield repr(program.target)
    usual = {field.name: field.default for field in fields(Program)}
    for name in Options.__annotations__:
        if (value := getattr(program, name)) != usual[name]:
            yield f"{name}={value!r}"


def _made(program: Program) -> Iterator[str]:
    """Yields the origin of the file and how it was verified, line by line."""
    if program.any_plan:
        yield f"Generated by ringloom {VERSION}. Change the command, not the file."
        yield "Its schedule and mask only name it: each set of tables has its own, and is made from"
        yield "a verified plan."
    else:
        yield f"Generated by ringloom {VERSION} from plan {digest(program.plans)}{_kind(program)}."
        yield f"Change the {'command' if program.command else 'plan'}, not the file."
        both = "both passes" if program.backward else "the forward pass"
        yield f"Verified: every query attends to each key it may see exactly once, in {both}."
        name = program.layout.q.name
        other = [peer for peer, where in PEERS.get(name, {}).items() if where and peer != name]
        if other:
            yield f"{name.capitalize()} is also called {', '.join(other)}."
    yield from _ran(program)
    yield "SPDX-License-Identifier: Apache-2.0"


def _kind(program: Program) -> str:
    if program.dynamic:
        return " (tables are an argument)"
    if program.loops is not None:
        return " (regular)"
    return f"\n(as tables, not loops: {plain(shortened(program.irregular, LONGEST))})"


def _ran(program: Program) -> Iterator[str]:
    """Yields the versions with which the kernels of a program were tested."""
    kinds = ("cpu", "gpu", "tpu") if program.platform == "all" else (program.platform,)
    kinds = kinds if program.loops is not None else ("cpu",)  # tables attend in jnp everywhere
    yield from (RAN[kind] for kind in (("torch",) if program.target == "torch" else kinds))


def _usage(program: Program) -> list[str]:
    """Returns the calls of a program, with comments."""
    sinks, given = ", sinks=sinks" * program.work.sinks, ", tables" * program.dynamic
    trained = "differentiable; " * program.choices["BACKWARD"]
    lines = list[tuple[str, str]]()
    if program.any_plan:
        lines = [("tables = load(path)", "from `ringloom tables torch SCHEDULE ... -o FILE`")]
    elif program.dynamic:
        lines = [("tables = make_tables(boxes)", "for any mask; or load(path)")]
    if program.target == "torch":
        shards = f"local shards [batch, heads, tokens, {program.work.head_dim}]"
        cut = f"q = shard(whole, rank{given * program.any_plan})"
        lines.append((f"out = attention(q, k, v{given}{sinks})", trained + shards))
        lines.append((cut, "this rank's shard; unshard is the inverse"))
    else:
        call = f"out = attention(q, k, v{given}{sinks}, mesh=mesh)"
        lines.append((call, f"{trained}arrays in layout order"))
        lines.append(("q = jnp.concatenate([shard(whole, n) for n in range(RANKS)], 2)", ""))
    width = max(len(code) for code, said in lines if said)
    return [f"{code:<{width}}  # {said}" if said else code for code, said in lines]


def _limits(program: Program) -> Iterator[str]:
    """Yields the lengths and dtypes that the program accepts, and the command that checks it."""
    heads = ", head count" * (program.any_heads and not program.any_plan)
    sizes = f"any batch size{heads} and float dtype"
    many = program.layout.multiple
    length = "any sequence length" + f" divisible by {many}" * (many > 1)
    length += f" and at least {program.least}" * (program.least > many)
    length = f"and {length}" if program.free else "at these sequence lengths only"
    if program.dynamic:
        length = "and any mask at these sequence lengths"
        length = "and any plan for these ranks and heads" if program.any_plan else length
    yield f"Works for {sizes},"
    yield f"{length}."
    run = f"torchrun --nproc-per-node {program.ranks}" if program.target == "torch" else "python"
    what = "output and gradients" if program.backward else "the output"
    size = f" on {program.checked} token{'s' * (program.checked > 1)}" * (not program.any_plan)
    slow = ", which is slow on CPUs" * (program.checked >= SLOW and not program.any_plan)
    yield f"`{run} FILE` compares {what}"
    yield f"with dense attention{size}{slow}."


# ---- constants


def constants(program: Program) -> str:
    """Prints sizes, PLAN and the data of the mask."""
    work, sizes = program.work, f"{program.layout.multiple}, {program.least}"
    lines = [
        f"RANKS = {program.ranks}",
        f"SEQ, KV_SEQ = {work.seq}, {work.kv_seq}{'  # as planned' * program.free}",
        *[f"MULTIPLE, LEAST = {sizes}  # of valid sequence lengths"] * program.free,
        f"CHECKED = {program.checked}  # tokens in the self-check",
        f"HEADS, KV_HEADS = {work.heads}, {work.kv_heads}",
        f"HEAD_DIM, V_HEAD_DIM = {work.head_dim}, {work.v_head_dim}",
        _scale(program),
        *_operator(program),
        plan_literal(program),
        mask_data(work, program.free),
    ]
    return "\n".join(lines)


def _operator(program: Program) -> Iterator[str]:
    """Yields the name of the torch operators: from the plan, or from sizes if any plan works."""
    if program.target == "torch":
        work, version = program.work, "".join(c if c.isalnum() else "_" for c in VERSION)
        sizes = program.ranks, work.heads, work.kv_heads, work.head_dim
        plan = "_".join(map(str, ("any", *sizes))) if program.any_plan else digest(program.plans)
        yield f'OPERATOR = "{plan}_{version}"'


def _scale(program: Program) -> str:
    work, scale = program.work, program.work.softmax_scale
    if program.signed:
        sign = int(np.sign(scale))
        return f"SCALE, SIGN = {abs(scale) or 1.0!r}, {sign}  # kernels mask before they scale"
    return f"SCALE = {work.head_dim}**-0.5" if work.scale is None else f"SCALE = {scale!r}"


def plan_literal(program: Program) -> str:
    """Prints PLAN, without what a dynamic program takes from tables."""
    work = program.work
    dims = ("head_dim", *["v_head_dim"] * program.unequal)
    lengths = () if program.any_plan else ("seq", "kv_seq")
    entries: dict[str, object] = {
        "name": plain(program.forward.name)[:80],
        "ranks": program.ranks,
        **{name: getattr(work, name) for name in (*lengths, "heads", "kv_heads", *dims)},
        **({"sinks": True} if work.sinks else {}),
        "scale": work.softmax_scale,
        "dtype": work.dtype,
    }
    if program.max_calls is not None:
        entries["max_calls"] = program.max_calls
    each = [f"{name!r}: {value!r}" for name, value in entries.items()]
    if not program.dynamic:  # else the mask is in the tables
        each.append(f"'mask': {literal(str(work.mask))}")
    return f"PLAN = {{{', '.join(each)}}}"
