"""Prints the header of a program: its docstring, its constants and PLAN.

The docstring says what the program computes, how it was generated and verified, and how to use and
check it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from shlex import quote, split

import numpy as np

from ringloom.codegen.frame.layout import Form
from ringloom.codegen.frame.masks import mask_data
from ringloom.codegen.frame.packed import print_string
from ringloom.codegen.programs import Options, Program
from ringloom.planner.files.digest import digest
from ringloom.planner.ir import TENSORS
from ringloom.planner.layouts.peers import PEERS
from ringloom.planner.loops.form import Exchange, Loops, Return, Root, Send, Shift
from ringloom.planner.version import VERSION

MAX_MASK = 40  # characters of a mask in the title
MAX_WORD = 80  # characters of a word of a command, or of a reason
SLOW = 2**12  # tokens from which a self-check takes minutes on CPUs
# Tested versions: on CPUs those of constraints.txt, on GPUs those of benchmarks/results.
CHIPS = "on an H100 and an H200"
TESTED = {
    "torch": f"Kernels tested on CPUs with torch 2.13.0, {CHIPS} with torch 2.11.0+cu130.",
    "cpu": "CPU kernel tested with jax 0.10.2.",
    "gpu": f"cuDNN and Triton kernels tested {CHIPS} with jax 0.11.2.",
    "tpu": "Splash attention tested in interpret mode with jax 0.10.2, not on a TPU.",
}


# ---- the docstring


def docstring(program: Program) -> str:
    """Prints the docstring with its quotes."""
    command = [*_command(program)]
    lines = [
        *(strip_quotes(line) for line in title(program)),
        "",
        *(f"    {line}" for line in command),
        "",
        *_origin(program),
        "",
        *(f"    {line}" for line in _usage(program)),
        "",
        *_limits(program),
    ]
    raw = "r" * (len(command) > 1)  # lines of the command end in a backslash
    return "\n".join([f'{raw}"""{lines[0]}', *lines[1:], '"""'])


def strip_quotes(text: str) -> str:
    """Removes characters that could end a docstring."""
    return "".join(c for c in text if c.isprintable() and c not in {'"', "\\"})


def truncate(text: str, length: int) -> str:
    """Truncates a text that is longer than `length`."""
    return text if len(text) <= length else f"{text[:length]}..."


def title(program: Program) -> Iterator[str]:
    """Yields the computation and the number of ranks, then the layout and the transfers."""
    mask = str(program.work.mask)
    computation = f"Attention under the mask {truncate(mask, MAX_MASK)}"
    computation = f"{mask.capitalize()} attention" if mask.isidentifier() else computation
    computation = "Attention under a mask given by tables" if program.dynamic else computation
    yield f"{computation} over {program.ranks} rank{'s' if program.ranks > 1 else ''}."
    yield ""
    if program.any_plan:
        yield "Tables also give the layout and the messages."
        return
    for line in [_layout_name(program.layout.q), *_transfers(program)]:
        yield f"{line[0].upper()}{line[1:]}."


def _layout_name(form: Form) -> str:
    groups = f" of groups of {form.members} ranks" if form.members > 1 else ""
    grain = f" in stripes of {form.width}" if form.width > 1 and not form.pieces else ""
    return f"{form.name or 'custom'} layout{grain}{groups}"


def _transfers(program: Program) -> list[str]:
    if program.loops is None:
        return ["messages given by tables"]
    return describe_transfers(program.loops[0]) or ["no communication"]


def describe_transfers(loops: Loops) -> list[str]:
    """Describes the transfers of a pass, in the order of their first steps."""
    lines = dict[str, None]()
    for s in sorted(loops.statements, key=lambda s: s.when.first):
        match s:
            case Exchange(tensors=tensors) if s.heads is None:
                lines[f"{_describe(tensors)} gathered"] = None
            case Exchange(tensors=tensors) if s.gathers:
                lines[f"{_describe(tensors)} gathered by heads"] = None
            case Exchange():
                lines["heads exchanged all-to-all"] = None
            case Return():
                lines["results sent back"] = None
            case Send(tensors=tensors, hop=Shift(), when=when):
                verb = "rotate in a ring" if when.last > when.first else "go to another rank"
                if TENSORS[tensors[0]].accumulates:
                    verb = "follow" if when.last > when.first else "return to their owners"
                lines[f"{_describe(tensors)} {verb}"] = None
            case Send(tensors=tensors, hop=Root()):
                lines[f"{_describe(tensors)} broadcast"] = None
    return [*lines]


def _describe(tensors: Sequence[str]) -> str:
    if TENSORS[tensors[0]].accumulates:
        return "partial results"
    return "keys and values" if TENSORS[tensors[0]].side == "kv" else "queries"


def _command(program: Program) -> Iterator[str]:
    """Yields the command that generates the file, one option per line, or the Python call."""
    if not program.command:
        yield f"rl.emit(plan, {', '.join(_arguments(program))})"
        return
    lines, comment = list[str](), ""
    for word in map(quote, split(program.command)):
        if len(word) > MAX_WORD:
            word, comment = "MASK", "  # MASK is PLAN['mask']"
        if lines and word[:2] != "--":
            lines[-1] += f" {strip_quotes(word)}"
        else:
            lines.append(strip_quotes(word))
    first, *others = lines
    lines = [first, *(f"    {line}" for line in others)]
    yield from (f"{line} \\" for line in lines[:-1])
    yield lines[-1] + comment


def _arguments(program: Program) -> Iterator[str]:
    """Yields the target, then the options of `emit` that are not defaults."""
    yield repr(program.target)
    defaults = {field.name: field.default for field in fields(Program)}
    for name in Options.__annotations__:
        if (value := getattr(program, name)) != defaults[name]:
            yield f"{name}={value!r}"


def _origin(program: Program) -> Iterator[str]:
    """Yields lines that say how the file was generated and verified."""
    if program.any_plan:
        yield f"Generated by ringloom {VERSION}. Change the command, not the file."
        yield "The schedule and mask of PLAN are only labels: each set of tables has its own, and"
        yield "comes from a verified plan."
    else:
        yield f"Generated by ringloom {VERSION} from plan {digest(program.plans)}{_kind(program)}."
        yield f"Change the {'command' if program.command else 'plan'}, not the file."
        passes = "both passes" if program.backward else "the forward pass"
        yield f"Verified: every query attends to each key it may see exactly once, in {passes}."
        name = program.layout.q.name
        synonyms = [peer for peer, users in PEERS.get(name, {}).items() if users and peer != name]
        if synonyms:
            yield f"{name.capitalize()} is also called {', '.join(synonyms)}."
    yield from _tested_versions(program)
    yield "SPDX-License-Identifier: Apache-2.0"


def _kind(program: Program) -> str:
    if program.dynamic:
        return " (tables are an argument)"
    if program.loops is not None:
        return " (regular)"
    return f"\n(as tables, not loops: {strip_quotes(truncate(program.irregular, MAX_WORD))})"


def _tested_versions(program: Program) -> Iterator[str]:
    """Yields the versions with which the kernels of a program were tested."""
    kinds = ("cpu", "gpu", "tpu") if program.platform == "all" else (program.platform,)
    kinds = kinds if program.loops is not None else ("cpu",)  # table programs only use jnp
    yield from (TESTED[kind] for kind in (("torch",) if program.target == "torch" else kinds))


def _usage(program: Program) -> list[str]:
    """Returns examples of calls, with comments."""
    sinks, tables = ", sinks=sinks" * program.work.sinks, ", tables" * program.dynamic
    gradients = "differentiable; " * program.choices["BACKWARD"]
    lines = list[tuple[str, str]]()
    if program.any_plan:
        lines = [("tables = load(path)", "from `ringloom tables torch SCHEDULE ... -o FILE`")]
    elif program.dynamic:
        lines = [("tables = make_tables(boxes)", "for any mask; or load(path)")]
    if program.target == "torch":
        shards = f"local shards [batch, heads, tokens, {program.work.head_dim}]"
        shard = f"q = shard(whole, rank{tables * program.any_plan})"
        lines.append((f"out = attention(q, k, v{tables}{sinks})", gradients + shards))
        lines.append((shard, "this rank's shard; unshard is the inverse"))
    else:
        call = f"out = attention(q, k, v{tables}{sinks}, mesh=mesh)"
        lines.append((call, f"{gradients}arrays in layout order"))
        lines.append(("q = jnp.concatenate([shard(whole, n) for n in range(RANKS)], 2)", ""))
    width = max(len(code) for code, comment in lines if comment)
    return [f"{code:<{width}}  # {comment}" if comment else code for code, comment in lines]


def _limits(program: Program) -> Iterator[str]:
    """Yields the lengths and dtypes that the program accepts, and the command that checks it."""
    heads = ", head count" * (program.any_heads and not program.any_plan)
    sizes = f"any batch size{heads} and float dtype"
    multiple = program.layout.multiple
    length = "any sequence length" + f" divisible by {multiple}" * (multiple > 1)
    length += f" and at least {program.min_length}" * (program.min_length > multiple)
    length = f"and {length}" if program.any_length else "at these sequence lengths only"
    if program.dynamic:
        length = "and any mask at these sequence lengths"
        length = "and any plan for these ranks and heads" if program.any_plan else length
    yield f"Works for {sizes},"
    yield f"{length}."
    run = f"torchrun --nproc-per-node {program.ranks}" if program.target == "torch" else "python"
    results = "output and gradients" if program.backward else "the output"
    size = f" on {program.check_tokens} token{'s' * (program.check_tokens > 1)}" * (
        not program.any_plan
    )
    slow = ", which is slow on CPUs" * (program.check_tokens >= SLOW and not program.any_plan)
    yield f"`{run} FILE` compares {results}"
    yield f"with dense attention{size}{slow}."


# ---- constants


def constants(program: Program) -> str:
    """Prints sizes, PLAN and the data of the mask."""
    work, sizes = program.work, f"{program.layout.multiple}, {program.min_length}"
    lines = [
        f"RANKS = {program.ranks}",
        f"SEQ, KV_SEQ = {work.seq}, {work.kv_seq}{'  # as planned' * program.any_length}",
        *[f"MULTIPLE, LEAST = {sizes}  # of valid sequence lengths"] * program.any_length,
        f"CHECKED = {program.check_tokens}  # tokens in the self-check",
        f"HEADS, KV_HEADS = {work.heads}, {work.kv_heads}",
        f"HEAD_DIM, V_HEAD_DIM = {work.head_dim}, {work.v_head_dim}",
        _scale(program),
        *_operator(program),
        plan_literal(program),
        mask_data(work, program.any_length),
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
    if program.needs_sign:
        sign = int(np.sign(scale))
        return f"SCALE, SIGN = {abs(scale) or 1.0!r}, {sign}  # kernels mask before they scale"
    return f"SCALE = {work.head_dim}**-0.5" if work.scale is None else f"SCALE = {scale!r}"


def plan_literal(program: Program) -> str:
    """Prints PLAN, without the values that a dynamic program takes from tables."""
    work = program.work
    dims = ("head_dim", *["v_head_dim"] * program.unequal_head_dims)
    lengths = () if program.any_plan else ("seq", "kv_seq")
    entries: dict[str, object] = {
        "name": strip_quotes(program.forward.name)[:80],
        "ranks": program.ranks,
        **{name: getattr(work, name) for name in (*lengths, "heads", "kv_heads", *dims)},
        **({"sinks": True} if work.sinks else {}),
        "scale": work.softmax_scale,
        "dtype": work.dtype,
    }
    if program.max_calls is not None:
        entries["max_calls"] = program.max_calls
    items = [f"{name!r}: {value!r}" for name, value in entries.items()]
    if not program.dynamic:  # dynamic programs get the mask from tables
        items.append(f"'mask': {print_string(str(work.mask))}")
    return f"PLAN = {{{', '.join(items)}}}"
