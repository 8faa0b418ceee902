"""Possible causes of predictions for TPUs that are too slow, each tried alone."""

from markdown import Lines, table

import ringloom as rl
from ringloom.simulator.hardware import hardware

MACHINE = "tpu-v5p"
SETTINGS = {  # ranks and tokens
    "allgather": ((8, 2**13), (8, 2**15), (8, 2**17), (64, 2**15), (64, 2**17)),
    "zigzag": ((8, 2**13), (8, 2**15), (8, 2**17)),
}
HIDDEN = 1e18  # bytes/s: nothing waits for messages
CAUSES = "nothing waits for messages", "half the bytes", "kernels at the end of their range"
ERROR = 0.35  # the smallest error to explain


def causes(schedule: str, ranks: int, seq: int) -> list[float]:
    """Returns how much too slow a prediction of attention is if each of CAUSES is true."""
    work = rl.Workload(seq=seq, heads=32, kv_heads=8, mask="causal")
    plans, machine = rl.plan(schedule, work, ranks, pass_="both"), hardware(MACHINE)
    rates = [f"attention.{pass_}" for pass_ in ("forward", "backward")]
    changes = (
        {"intra.bandwidth": HIDDEN, "intra.alpha": 0.0},
        {"intra.bandwidth": 2 * machine["intra.bandwidth"]},
        {key: machine.range(key)[1] for key in rates},
    )
    took = rl.simulate(plans, machine).makespan
    return [took / rl.simulate(plans, machine.changed(c)).makespan - 1 for c in changes]


def section() -> Lines:
    """Lists the error that each cause could account for."""
    machine = hardware(MACHINE)
    usual, most = machine["attention.forward"], machine.range("attention.forward")[1]
    yield from (
        "Held-out rows of MaxText on v5p were predicted 35 to 60% too slow, for attention alone.",
        "None of them is in this repository. The rows that are say that a hop of its ring took",
        "compute + transfer before a fix, and the maximum of both after it, as predicted. By how",
        "much would a prediction of both passes (32:8 heads of 128, causal) be too slow if",
        "",
        "* XLA hid all transfers behind other layers: *nothing waits for messages*;",
        "* gradients were summed in 16 bit instead of 32: at most *half the bytes* of messages;",
        f"* kernels reached the *end of their range*, {most:g} of the peak, instead of the assumed",
        f"  {usual:g}?",
        "",
    )
    rows = {(name, *at): causes(name, *at) for name, own in SETTINGS.items() for at in own}
    yield from table(
        ("schedule, ranks, tokens per rank", *CAUSES),
        (
            (f"{name}, {ranks}, {seq // ranks}", *(f"{share:+.0%}" for share in row))
            for (name, ranks, seq), row in rows.items()
        ),
    )
    gathers = {seq // ranks: row for (name, ranks, seq), row in rows.items() if name == "allgather"}
    narrow = max(row[1] for row in gathers.values())
    hidden = [tokens for tokens, row in gathers.items() if row[0] >= ERROR]
    yield from (
        f"For all-gathers, narrower sums account for at most {narrow:.0%}.",
        f"Hidden gathers account for {ERROR:.0%} or more if a rank has up to {max(hidden)} tokens;",
        "on longer sequences only the rate of the kernels does. Without rows that state their",
        "setting, the two causes cannot be distinguished, so no constant was added.",
        "",
    )
