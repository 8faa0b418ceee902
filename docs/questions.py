"""Writes the page of questions that users ask.

The answer is a command or up to five lines of Python, and the page shows its output.
"""

import io
import os
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from outputs import fold_command


@dataclass(frozen=True)
class Question:
    """A question, its answer as a command or as Python, and a sentence that explains the answer."""

    text: str
    answer: str
    explanation: str

    @property
    def is_command(self) -> bool:
        """True if the answer is a shell command."""
        return self.answer.startswith("ringloom ")


SITUATIONS = {
    "Packed documents of any length": (
        Question(
            "My batch packs documents of any length. Must I pad each to a multiple of twice the"
            " number of ranks?",
            "ringloom run zigzag --ranks 4 --seq 203 --heads 4 --head-dim 16"
            ' --mask "causal & documents:50,100,53" --check',
            "No. Pieces may be uneven; the result is still exact.",
        ),
        Question(
            "Which schedule balances packed documents?",
            "ringloom compare --ranks 8 --seq 64k --heads 32 --kv-heads 8 --hardware h100"
            ' --mask "causal & documents:40000,20000,5536"'
            " --schedules ring,zigzag,allgather:layout=per-document,group-cast",
            "Schedules with the layout `per-document`, which shards each document separately:"
            " compare *idle*. The best-balanced schedule need not be the fastest.",
        ),
    ),
    "Windows, and layers that differ": (
        Question(
            "My layers have a window of 4,096 tokens. Must all keys and values be sent?",
            """import ringloom as rl
work = rl.Workload(seq=2**18, heads=32, kv_heads=8, mask="window:4096")
for name in ("ring", "zigzag", "halo"):
    result = rl.simulate(rl.plan(name, work, 8), "h100")
    print(f"{name:7} sends {result.max_bytes_sent / 2**20:6.1f} MiB")""",
            "No. Rings send whole pieces, but only to ranks that need them; `halo` sends exactly"
            " the keys inside the window.",
        ),
        Question(
            "Every fourth layer is causal; all others have a window. Can all use one schedule?",
            """import ringloom as rl
for mask in ("causal", "window:4096"):
    work = rl.Workload(seq=2**17, heads=32, kv_heads=8, mask=mask)
    advice = rl.compare(work, 8, "h100", ["ring", "zigzag", "allgather", "halo"]).recommendation
    print(f"{mask}: {advice.schedule}, too close: {', '.join(advice.close_to) or 'none'}")""",
            "Compare once per kind of layer: the answers may differ. Layers with the same layout of"
            " tokens need no exchange in between; `rl.balanced_layout` makes one layout for several"
            " masks.",
        ),
    ),
    "Which method and degree for my links and heads": (
        Question(
            "Ring, Ulysses or both, and which degree, for 32 query and 8 KV heads on two nodes?",
            "ringloom compare --ranks 16 --seq 128k --heads 32 --kv-heads 8 --hardware h100",
            "`compare` tries every degree that divides the heads, and recommends one at the end.",
        ),
        Question(
            "Does the answer change if GPUs are connected by PCIe?",
            "ringloom compare --ranks 8 --seq 32k --heads 32 --kv-heads 8 --hardware a100-pcie"
            " --schedules ring,zigzag,ulysses,allgather",
            "Slow links make *exposed comm* grow: the time that a rank waits for transfers.",
        ),
    ),
    "A group size per sample": (
        Question(
            "Can a group have three, five or seven ranks?",
            """import ringloom as rl
work = rl.Workload(seq=211, heads=4, head_dim=16, dtype="float64")
for ranks in (3, 5, 7):
    print(ranks, rl.check(rl.plan("zigzag", work, ranks, pass_="both")))""",
            "Yes. Any number of ranks works.",
        ),
        Question(
            "Can a long sample use many ranks, and short samples few?",
            "ringloom compare --ranks 8 --seq 64k --heads 32 --kv-heads 8 --hardware h100"
            ' --mask "causal & documents:49152,8192,8192" --schedules groups,zigzag',
            "Yes. `groups` assigns each document to its own ranks.",
        ),
    ),
    "Prefixes that samples share": (
        Question(
            "My rollouts share a prompt. Can it be computed once, exactly?",
            "ringloom run zigzag --ranks 4 --seq 160 --heads 4 --head-dim 16"
            ' --mask "tree:64,48,48/-,0,0" --pass both --check',
            "Yes. Use a tree as the mask: each branch sees its ancestors and itself.",
        ),
        Question(
            "How much work does sharing a prompt of 8k tokens save for eight answers of 1k?",
            """import ringloom as rl
shared = rl.Workload(seq=16 * 1024, mask="tree:8192" + 8 * ",1024" + "/-" + 8 * ",0", heads=32)
apart = rl.Workload(seq=72 * 1024, heads=32, mask="causal & documents:9216" + 7 * ",9216")
times = [rl.simulate(rl.plan("zigzag", w, 8), "h100").makespan for w in (shared, apart)]
print(f"{times[1] / times[0]:.1f}x as fast")""",
            "The prompt is attended once instead of eight times.",
        ),
    ),
    "Heads that do not divide": (
        Question(
            "Can Ulysses run with 6 query and 3 KV heads on 4 ranks?",
            "ringloom run ulysses --ranks 4 --seq 203 --heads 6 --kv-heads 3 --head-dim 16"
            " --pass both --check",
            "Yes. Heads are distributed unevenly; none is padded.",
        ),
        Question(
            "Which combinations of Ulysses and ring are possible on 12 ranks?",
            "ringloom compare --ranks 12 --seq 96k --heads 24 --kv-heads 6 --hardware h100"
            " --schedules usp:ulysses=2,usp:ulysses=3,usp:ulysses=4,usp:ulysses=6,ulysses",
            "All pairs of degrees whose product is 12; if a pair cannot run, its row says why.",
        ),
    ),
}


def output(question: Question) -> str:
    """Runs an answer, and returns its output, 80 columns wide."""
    from ringloom.cli import main

    printed = io.StringIO()
    with patch.dict(os.environ, {"COLUMNS": "80"}), redirect_stdout(printed):
        if question.is_command:
            status = main(shlex.split(question.answer)[1:])
            assert status == 0, question.answer
        else:
            scope: dict[str, Any] = {}
            exec(question.answer, scope)
    return printed.getvalue()


def page() -> Iterator[str]:
    """Writes the page: a section per situation, and each answer with its output."""
    yield from ("# Questions and answers", "")
    yield from ("Each answer was run when this page was built, and is followed by its output.", "")
    for situation, questions in SITUATIONS.items():
        yield from (f"## {situation}", "")
        for question in questions:
            yield from (f"**{question.text}** {question.explanation}", "")
            if question.is_command:
                yield from ("```console", f"$ {fold_command(question.answer)}", "```", "")
            else:
                yield from ("```python", question.answer, "```", "")
            lines = output(question).rstrip().splitlines()
            yield from ("```text", *(line.rstrip() for line in lines), "```", "")
