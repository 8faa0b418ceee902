"""jax_program   Program -> the source of one JAX file: an attention function and its check.

The schedule's rule, the functions that turn its rows into collectives and slots, and the layout are
written word for word; kernels and passes are text. Tables are worked out where the program starts,
so its length depends on the kind of plan and not on its ranks.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from codegen import (
    head_rules,
    jax_check,
    jax_heads,
    jax_kernels,
    jax_messages,
    jax_passes,
    jax_passing,
    jax_routes,
    jax_slots,
    layouts,
    rows,
    rules,
    tables,
)
from codegen.jax_header import constants, header, imports
from codegen.jax_routes import Loops, loops_of, simpler, steps_of
from codegen.program import Node, Program, Schedule
from codegen.rows import Held, Move
from codegen.writer import Writer
from planner.errors import PlanError

CHECKED = 512  # queries per rank that the self-check takes unless told otherwise


def write(program: Program) -> str:
    """The file, formatted as ruff formats it. Raises PlanError for copies that nobody sent."""
    w = attention_file(program, header(program, chosen(program)))
    w.title("self-check")
    w.section(jax_check.DENSE)
    gradients = jax_check.GRADS if program.backward else jax_check.NO_GRADS
    w.section(jax_check.CHECK.format(run=gradients))
    w.section(self_check_main(program))
    return w.text()


def attention_file(program: Program, docstring: str) -> Writer:
    """The file up to its self-check. Raises PlanError for copies that nobody sent."""
    check_held(program)
    w = Writer()
    w(docstring)
    w()
    w(imports(_cuts(program)))
    w()
    w(constants(program))
    _layout(w, program)
    _schedule(w, program)
    _lockstep(w, program)
    _kernels(w, program)
    _attention(w, program)
    return w


def check_held(p: Program) -> None:
    """Raise PlanError for copies that nobody sent: at the start of a forward pass, or of a backward
    pass whose forward pass did not bring them."""
    if any(isinstance(node, Held) for node in p.forward.nodes):
        raise PlanError("a program cannot start with copies away from home: nobody sends them")
    held = [node for node in p.backward.nodes if isinstance(node, Held)] if p.backward else []
    came = np.zeros((p.ranks, len(p.layout.kv) * len(p.layout.kv_slices) + 1), bool)
    for node in p.forward.nodes if held else ():
        if isinstance(node, Move) and "KV" in node.tensors:
            came[node.dst[:, None], node.blocks] = True
    came[:, -1] = True
    for node in held:
        if node.tensors != ("KV",):
            raise PlanError(f"a backward pass can keep KV, not {', '.join(node.tensors)}")
        if not came[node.rank[:, None], node.blocks].all():
            raise PlanError("the backward plan holds KV that the forward plan does not bring")


# ---- what the program will choose, for its header


def chosen(p: Program) -> list[Loops]:
    """The loops of each pass as the function `chosen` of the program picks them."""
    found = []
    for schedule in p.passes:
        steps, full = steps_of(schedule.nodes), partial(every_row, p, schedule)
        held = any(isinstance(node, Held) for node in schedule.nodes)
        found.append(loops_of(steps, p.ranks) if held else simpler(steps, full, p.ranks))
    return found


def every_row(p: Program, schedule: Schedule) -> Iterator[Node]:
    """The rows of a pass as if the mask were full, where a rule can say that."""
    if schedule.rule is None:
        yield from schedule.nodes
        return
    backward = schedule is p.backward
    q, kv = layouts.owned(p.layout.q, p.ranks), layouts.owned(p.layout.kv, p.ranks)
    q_homes, kv_homes = (np.array([h for _, h in side]) for side in (p.layout.q, p.layout.kv))
    live = np.ones((len(p.layout.q), len(p.layout.kv)), bool)
    if schedule.rule != "dealt":
        rule = getattr(rules, schedule.rule)
        yield from rule(p.ranks, q, kv, q_homes, kv_homes, live, backward)
        return
    shared = layouts.shared_heads(p.layout.q_slices, p.layout.kv_slices, p.work.group)
    q_uses, kv_uses = layouts.slices_used(shared, p.group)
    homes_and_mask = q_homes, kv_homes, live, backward
    yield from head_rules.dealt(p.ranks, q, kv, *homes_and_mask, q_uses, kv_uses, *shared.shape)


# ---- the parts of the file


def _cuts(p: Program) -> bool:
    """Whether the program needs `cut`."""
    maker = p.layout.maker
    return _dealt(p) or bool(maker and (maker.group > 1 or maker.function != "striped"))


def _dealt(p: Program) -> bool:
    return any(s.rule == "dealt" for s in p.passes)


def _aligned(p: Program) -> bool:
    return jax_heads.aligned(p.layout.q_slices, p.layout.kv_slices, p.work.group)


def _sliced(p: Program) -> bool:
    return len(p.layout.q_slices) * len(p.layout.kv_slices) > 1


def _layout(w: Writer, p: Program) -> None:
    maker = p.layout.maker
    w.title(f"layout: {maker.function if maker else 'as listed'}")
    names = {"q_pieces": "Q_PIECES", "kv_pieces": "KV_PIECES", "kv_note": "; kv=True: of keys"}
    at = "kv_positions(rank) if kv or x.shape[axis] != SEQ else positions(rank)"
    if _cuts(p):
        w.paste(layouts.cut)
    if maker:
        w.paste(getattr(layouts, maker.function))
        if maker.group > 1:
            w.paste(layouts.in_groups)
        w.section(PIECES.format(call=_maker_call(p)))
        names |= {"q_pieces": "pieces(seq)", "kv_pieces": "pieces(kv_seq)"}
        at = "kv_positions(rank) if kv else positions(rank, x.shape[axis])"
    else:
        w.paste(tables.read_span, tables.read_pieces)
        for name, side in (("Q_PIECES", p.layout.q), ("KV_PIECES", p.layout.kv)):
            w.section(f'{name} = read_pieces("""')
            w.lines += [*tables.write_pieces(side), '""")']
    w.paste(layouts.positions_of, layouts.owned)
    w.section(jax_passes.SHARDS.format(at=at, **names))


PIECES = '''
@lru_cache
def pieces(tokens):
    """The pieces of a sequence: (positions as ranges, home rank) each."""
    return {call}
'''


def _maker_call(p: Program) -> str:
    maker = p.layout.maker
    if maker is None:
        raise TypeError("a layout by table has no function")
    grain = f", {maker.grain}" if maker.grain > 1 else ""
    group = f" // {maker.group}" if maker.group > 1 else ""
    call = f"{maker.function}(tokens, P{group}{grain})"
    return f"in_groups({call}, {maker.group})" if maker.group > 1 else call


def _schedule(w: Writer, p: Program) -> None:
    w.title("schedule: who attends what and what travels where, one row per rank")
    w.paste(rows.Attend, rows.Move, rows.Held)
    names = {s.rule for s in p.passes if s.rule}
    if names:
        if names != {"helpers"}:
            w.paste(rows.rectangles)
        w.paste(layouts.bounds, layouts.live_pieces)
    if names & {"ring", "query_ring", "dealt"}:
        w.paste(rows.around, rows.relay, rows.Sums)
    if _dealt(p):
        w.paste(layouts.head_slices, layouts.shared_heads, layouts.slices_used)
        w.paste(head_rules.in_slices)
    if "helpers" in names:
        w.paste(rules.helper_rounds)
    for name in sorted(names | ({"gather"} if "kept_gather" in names else set())):
        w.paste(getattr(head_rules if name == "dealt" else rules, name))
    _slices(w, p)
    if any(s.rule is None for s in p.passes):
        w.paste(tables.read_blocks, tables.read_schedule)
    for schedule, name in zip(p.passes, ("FORWARD", "BACKWARD"), strict=False):
        if schedule.rule is None:
            w.section(f'{name} = """')
            w.lines += [*tables.write_schedule(schedule.nodes), '"""']
    w.section(_schedule_function(p))


def _slices(w: Writer, p: Program) -> None:
    """The head slices of both sides."""
    lines = [f"GROUP = {p.work.group}  # query heads per KV head"]
    if _dealt(p):
        lines.append(f"DEALT = {p.group}  # ranks among which heads are dealt")
        lines.append("SLICES = head_slices(HEADS, GROUP, DEALT)  # of queries and of keys")
    else:
        lines.append("SLICES = (  # the head slices of queries and of keys")
        for side in (p.layout.q_slices, p.layout.kv_slices):
            lines += ["    [", *[f"        {_range(s)}," for s in side], "    ],"]
        lines.append(")")
    w.section("\n".join(lines))


def _range(s: range) -> str:
    return f"range({s.start}, {s.stop})" if s.start else f"range({s.stop})"


def _schedule_function(p: Program) -> str:
    lines = [
        "def schedule(backward, seq, kv_seq, everything):",
        '    """The rows of one pass, in order; `everything`: as if the mask were full."""',
    ]
    listed = [s.rule is None for s in p.passes]
    if not any(s.nodes for s in p.passes if s.rule is None) and all(listed):
        return "\n".join([*lines, "    return iter(())"])
    if all(listed):
        text = "BACKWARD if backward else FORWARD" if p.backward else "FORWARD"
        return "\n".join([*lines, f"    return read_schedule({text})"])
    if any(listed):
        guard, text = ("not ", "FORWARD") if listed[0] else ("", "BACKWARD")
        lines += [f"    if {guard}backward:", f"        return read_schedule({text})"]
    lines += [
        "    q, kv = pieces(seq), pieces(kv_seq)",
        "    live = live_pieces(q, kv, kv_seq - seq, MASK) | everything",
        "    q_homes, kv_homes = (np.array([home for _, home in x]) for x in (q, kv))",
    ]
    names = [s.rule for s in p.passes if s.rule]
    if _dealt(p):
        lines += [
            "    shared = shared_heads(*SLICES, GROUP)",
            "    what = P, owned(q, P), owned(kv, P), q_homes, kv_homes, live, backward",
            "    return dealt(*what, *slices_used(shared, DEALT), *shared.shape)",
        ]
        return "\n".join(lines)
    if names[0] != names[-1]:
        lines.append(f"    rule = {names[-1]} if backward else {names[0]}")
    rule = names[0] if names[0] == names[-1] else "rule"
    lines.append("    what = P, owned(q, P), owned(kv, P), q_homes, kv_homes, live, backward")
    lines.append(f"    return {rule}(*what)")
    return "\n".join(lines)


def _lockstep(w: Writer, p: Program) -> None:
    w.title("collectives: what all ranks do at once, in loops where turns are alike")
    w.paste(*_definitions(jax_routes))
    w.title("slots: where each rank keeps each block")
    w.section(
        "NOWHERE = 2**30  # the slot of what is not there: read as anything, never written\n"
        "FOREVER = 2**30  # later than any step"
    )
    w.paste(*_definitions(jax_passing), *_definitions(jax_slots))
    sides = "pieces(seq)", "pieces(kv_seq)"
    if p.layout.maker is None:
        sides = "Q_PIECES", "KV_PIECES"
    w.section(jax_passes.SETUP.format(q_pieces=sides[0], kv_pieces=sides[1]))


def _definitions(module: object) -> list[type]:
    """The functions and classes that a module defines, in their order."""
    found = vars(module)
    name = found["__name__"]
    return [x for x in found.values() if callable(x) and getattr(x, "__module__", "") == name]


def _kernels(w: Writer, p: Program) -> None:
    w.title("kernels: tiles of a block, those that the mask hides left out")
    if p.mask.kind == "boxes":
        w.section("BOXES = np.ascontiguousarray(MASK.T)  # one row per bound")
    w.section(jax_kernels.MASKS[p.mask.kind if len(p.mask.boxes) else "boxes"])
    w.section(jax_kernels.TILES)
    if p.backward:
        w.section(jax_kernels.ADD_TILE)
    w.section(jax_kernels.BY_LANES)
    if not _aligned(p):
        w.paste(jax_heads.kv_heads_of)
        w.section("HEADS_OF = kv_heads_of(*SLICES, GROUP)")
        w.section(jax_kernels.PER_HEAD)
    w.section(jax_kernels.KERNEL)
    w.section(_by_head(jax_kernels.FORWARD, p))
    if p.backward:
        w.section(jax_kernels.KERNEL_BACKWARD)
        w.section(_by_head(jax_kernels.BACKWARD, p))


def _by_head(text: str, p: Program) -> str:
    """The text of a rectangle with the head choice in it where slices and KV heads cross."""
    for mark, lines in jax_kernels.HEAD_CHOICE.items():
        text = text.replace(mark, "" if _aligned(p) else lines)
    return text


def _attention(w: Writer, p: Program) -> None:
    w.title("messages")
    w.section(jax_messages.MESSAGES)
    w.section(jax_messages.FOLLOW)
    w.title("attention")
    marks = {"split": "", "join": "    x = blocks\n", "slices": ""}
    if _sliced(p):
        slices = '    slices = SLICES[tensor == "DKV"]\n'
        marks = {"split": jax_passes.SPLIT, "join": jax_passes.JOIN, "slices": slices}
    w.section(jax_passes.BLOCKS.format(**marks))
    w.section(_shapes(p))
    w.section(jax_passes.FUNCTION if p.backward else jax_passes.FUNCTION_FORWARD_ONLY)
    w.section(jax_passes.FORWARD_PASS)
    if p.backward:
        w.section(jax_passes.BACKWARD_PASS)


def _shapes(p: Program) -> str:
    """Attention and the check of what it is given."""
    fits = "heads != kv_heads * GROUP or kv_heads % shards"
    text = "{GROUP} query heads per KV head, and as many KV heads on every shard"
    if _sliced(p):
        fits = "(heads, kv_heads) != (HEADS * shards, KV_HEADS * shards)"
        text = "{HEADS} query heads and {KV_HEADS} KV heads on every shard"
    return jax_passes.ATTENTION.replace("HEADS_DIFFER", fits).replace("HEADS_TEXT", text)


def self_check_main(p: Program) -> str:
    """The function that a file runs as a script."""
    fixed = p.fixed_length
    complaint = 'f"mask and tables are for --seq {SEQ} only"'
    return jax_check.MAIN.format(
        default="SEQ" if fixed else f"min(SEQ, {CHECKED} * P)",
        fixed=" or options.seq != SEQ" if fixed else "",
        complaint=complaint if fixed else '"--seq must be at least 1"',
    )
