"""torch_program   Program -> the source of one torch file: an attention function and its check."""

from codegen import (
    calls,
    head_rules,
    layouts,
    rows,
    rules,
    tables,
    torch_check,
    torch_kernels,
    torch_rectangles,
    torch_setup,
    torch_steps,
)
from codegen.program import Program, Schedule
from codegen.torch_header import constants, dealt, header, imports, pairwise_layout, signless
from codegen.writer import Writer


def write(program: Program) -> str:
    """The file, formatted as ruff formats it, for any line length from 88 to 100."""
    w = attention_file(program, header(program))
    _check(w, program)
    return w.text()


def attention_file(program: Program, head: str) -> Writer:
    """The file as far as its attention function, for what else is built around one."""
    w = Writer()
    w(head)
    w()
    w(imports(program))
    w()
    w(constants(program))
    _layout(w, program)
    _schedule(w, program)
    _calls(w, program)
    _follow(w, program)
    _compute(w, program)
    _attention(w, program)
    return w


# ---- the parts of the file


def _layout(w: Writer, p: Program) -> None:
    maker = p.layout.maker
    w.title(f"layout: {maker.function if maker else 'as listed'}")
    if maker:
        if pairwise_layout(p):
            w.paste(layouts.cut)
        w.paste(getattr(layouts, maker.function))
        if maker.group > 1:
            w.paste(layouts.in_groups)
        grain = f", {maker.grain}" if maker.grain > 1 else ""
        call = (
            f"{maker.function}(tokens, P{f' // {maker.group}' if maker.group > 1 else ''}{grain})"
        )
        if maker.group > 1:
            call = f"in_groups({call}, {maker.group})"
        w.section(f'''
@lru_cache
def pieces(tokens):
    """The pieces of a sequence: (positions as ranges, home rank) each."""
    return {call}
''')
        q_pieces = kv_pieces = ""
        text = torch_setup.SHARD_BY_RULE
        q_pieces, kv_pieces = "pieces(seq)", "pieces(kv_seq)"
    else:
        w.paste(tables.read_span, tables.read_pieces)
        _table(w, "Q_PIECES", "read_pieces", tables.write_pieces(p.layout.q))
        _table(w, "KV_PIECES", "read_pieces", tables.write_pieces(p.layout.kv))
        text, q_pieces, kv_pieces = torch_setup.SHARD_BY_TABLE, "Q_PIECES", "KV_PIECES"
    w.paste(layouts.positions_of)
    w.section(torch_setup.SHARDS.format(q_pieces=q_pieces, kv_pieces=kv_pieces))
    w.section(text)


def _table(w: Writer, name: str, reader: str, lines: list[str]) -> None:
    w.section(f'{name} = {reader}("""')
    for line in lines:
        w.lines.append(line)
    w.lines.append('""")' if reader else '"""')


def _schedule(w: Writer, p: Program) -> None:
    w.title("schedule: who attends what and what travels where, one row per rank")
    w.paste(rows.Attend, rows.Move, rows.Held)
    names = {s.rule for s in p.passes if s.rule}
    if names:
        if names != {"helpers"}:
            w.paste(rows.rectangles)
        w.paste(layouts.owned, layouts.bounds, layouts.live_pieces)
        if names & {"ring", "query_ring", "dealt"}:
            w.paste(rows.around, rows.relay, rows.Sums)
        if dealt(p):
            if not pairwise_layout(p):
                w.paste(layouts.cut)
            w.paste(layouts.head_slices, layouts.shared_heads, layouts.slices_used)
            w.paste(head_rules.in_slices)
        if names & {"kept_gather"}:
            names.add("gather")
        if names & {"helpers"}:
            w.paste(rules.helper_rounds)
        for name in sorted(names):
            w.paste(getattr(head_rules if name == "dealt" else rules, name))
    if dealt(p):
        w.section(
            f"GROUP = {p.work.group}  # query heads per KV head\n"
            f"DEALT = {p.group}  # ranks among which heads are dealt\n"
            "Q_SLICES, KV_SLICES = head_slices(HEADS, GROUP, DEALT)\n"
            'SLICES = {"q": Q_SLICES, "kv": KV_SLICES}'
        )
    elif len(p.layout.q_slices) * len(p.layout.kv_slices) > 1:
        w.section(f"GROUP = {p.work.group}  # query heads per KV head")
    if any(s.rule is None for s in p.passes):
        w.paste(tables.read_blocks, tables.read_schedule)
    for schedule, name in zip(p.passes, ("FORWARD", "BACKWARD"), strict=False):
        if schedule.rule is None:
            w.section(f'{name} = """')
            w.lines += [*tables.write_schedule(schedule.nodes), '"""']
    w.section(_schedule_function(p))


def _schedule_function(p: Program) -> str:
    lines = ["def schedule(backward, seq, kv_seq):", '    """The rows of one pass, in order."""']
    tables_ = [s.rule is None for s in p.passes]
    if all(tables_):
        text = "BACKWARD if backward else FORWARD" if p.backward else "FORWARD"
        return "\n".join([*lines, f"    return read_schedule({text})"])
    if any(tables_):
        guard, text = ("not ", "FORWARD") if tables_[0] else ("", "BACKWARD")
        lines += [f"    if {guard}backward:", f"        return read_schedule({text})"]
    lines += [
        "    q, kv = pieces(seq), pieces(kv_seq)",
        "    live = live_pieces(q, kv, kv_seq - seq, MASK)",
        "    q_homes, kv_homes = (np.array([home for _, home in x]) for x in (q, kv))",
    ]
    names = [s.rule for s in p.passes if s.rule]
    if names[0] == "dealt":
        lines += [
            "    shared = shared_heads(Q_SLICES, KV_SLICES, GROUP)",
            "    what = P, owned(q, P), owned(kv, P), q_homes, kv_homes, live, backward",
            "    return dealt(*what, *slices_used(shared, DEALT), *shared.shape)",
        ]
        return "\n".join(lines)
    if names[0] != names[-1]:
        lines.append(f"    rule = {names[-1]} if backward else {names[0]}")
    rule = names[0] if names[0] == names[-1] else "rule"
    lines += [
        "    homes = q_homes, kv_homes",
        f"    return {rule}(P, owned(q, P), owned(kv, P), *homes, live, backward)",
    ]
    return "\n".join(lines)


def _calls(w: Writer, p: Program) -> None:
    w.title("kernel calls: rectangles of blocks, cut so that no row of a call sees nothing")
    w.paste(calls.Call)
    masked = p.call_rule == "mask_calls"
    if masked:
        w.section(f"TILE = {calls.TILE}  # rows of a masked call")
        w.paste(calls.mask_calls, calls.cost, calls.count, calls.seen_spans, calls.box_calls)
        w.paste(calls.stair_calls, calls.moved_calls, calls.triangle_calls, calls.union_calls)
    else:
        w.paste(getattr(calls, p.call_rule))
    index = "    if not isinstance(part, slice):\n        return part + by\n" if masked else ""
    boxes = ", MASK" if masked else ""
    w.section(torch_setup.CALLS_AT.format(call_rule=p.call_rule, boxes=boxes, index=index))


def _follow(w: Writer, p: Program) -> None:
    tables_ = p.layout.maker is None
    w.title("one rank's part: what it holds, sends, receives and attends")
    w.section(torch_steps.TASKS)
    setup = torch_setup.SETUP.format(
        q_pieces="Q_PIECES" if tables_ else "pieces(seq)",
        kv_pieces="KV_PIECES" if tables_ else "pieces(kv_seq)",
    )
    if _sliced(p):
        setup = setup.rstrip("\n") + "\n" + torch_setup.COMMON_HEADS
    w.section(setup)
    w.section(torch_setup.PREPARE)
    masked = p.call_rule == "mask_calls"
    w.section(torch_steps.store(sliced=_sliced(p), masked=masked))
    w.section(torch_steps.MESSAGES)
    w.section(torch_steps.FOLLOW_KEEPING if _kept(p) else torch_steps.FOLLOW)


def _sliced(p: Program) -> bool:
    return p.group > 1 or len(p.layout.q_slices) * len(p.layout.kv_slices) > 1


def _kept(p: Program) -> bool:
    return bool(p.backward and any(isinstance(n, rows.Held) for n in p.backward.nodes))


def _query_side_travels(s: Schedule) -> bool:
    return "STATS" in s.tensors


def _compute(w: Writer, p: Program) -> None:
    masked = p.call_rule == "mask_calls"
    names = {
        "bias": "bias(call, q)" if masked else "None",
        "cuda_bias": "aligned_bias(call, q)" if masked else "None",
        "flash": "call.spans is None and " if masked else "",
        "scale": "SCALE" if signless(p) else "SIZE",
    }
    w.title("kernels")
    w.section(torch_kernels.MERGE)
    if masked:
        w.section(torch_kernels.BIAS)
        w.section(torch_kernels.CUDA_BIAS)
    w.section(torch_kernels.PER_QUERY_HEAD)
    w.section(torch_kernels.KERNELS.format(**names))
    has = torch_rectangles.Features(
        masked=masked,
        sliced=_sliced(p),
        signed=not signless(p),
        travelling=bool(p.backward and _query_side_travels(p.backward)),
    )
    torch_rectangles.forward(w, has)
    if p.backward:
        w.section(torch_kernels.KERNELS_BACKWARD.format(**names))
        if has.travelling:
            w.section(torch_kernels.STAND_IN)
        torch_rectangles.backward(w, has)


def _attention(w: Writer, p: Program) -> None:
    work = p.work
    kept = _kept(p)
    w.title("attention")
    w.section(
        torch_setup.ATTENTION.format(
            heads=work.heads, kv_heads=work.kv_heads, head_dim=work.head_dim
        )
    )
    if not p.backward:
        w.section(torch_setup.FUNCTION_FORWARD_ONLY)
        w.section(torch_setup.FORWARD_PASS)
        return
    w.section(torch_setup.FUNCTION_KEEPING if kept else torch_setup.FUNCTION)
    w.section(torch_setup.FIRST_ONLY)
    w.section(torch_setup.FORWARD_PASS_KEEPING if kept else torch_setup.FORWARD_PASS)
    if _query_side_travels(p.backward):
        stats = (
            "    delta = (dout.to(lse.dtype) * out).sum(dim=-1, keepdim=True)\n"
            '    store.shard("STATS", torch.cat([lse, delta], dim=-1))'
        )
    else:
        stats = '    store.shard("O", out)\n    store.shard("STATS", lse)'
    place = ""
    if kept:
        place = (
            "    for (tensor, block), copy in kept.items():\n"
            "        store.place(tensor, [block], copy)\n"
        )
    w.section(
        torch_setup.BACKWARD_PASS.format(kept=", kept" if kept else "", stats=stats, place=place)
    )


def _check(w: Writer, p: Program) -> None:
    w.title("self-check")
    w.section(torch_check.DENSE)
    grads = torch_check.GRADS if p.backward else torch_check.NO_GRADS
    w.section(torch_check.CHECK.format(backward=bool(p.backward), grads=grads.strip("\n")))
    w.section(self_check_main(p))


def self_check_main(p: Program) -> str:
    """The text that launches a self-check, on ranks of torchrun or on ranks of its own."""
    fixed = p.fixed_length
    default = "SEQ" if fixed else str(min(p.work.seq, 512 * p.ranks))
    return torch_check.MAIN.format(
        default=default,
        fixed=" or options.seq != SEQ" if fixed else "",
        complaint='f"mask and tables are for --seq {SEQ} only"'
        if fixed
        else '"--seq must be at least 1"',
    )
