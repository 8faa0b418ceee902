"""Audits in a launcher of one's own, torchrun, of what adapters of other libraries make."""

import subprocess
import sys
from pathlib import Path

import pytest

from sampling import NIGHTLY

pytest.importorskip("torch")
pytest.importorskip("transformers")

SCRIPT = """
import torch.distributed as dist

import ringloom as rl
from ringloom.auditing.adapters import flash_shaped, transformers_attention
from ringloom.auditing.cases import case_of
from ringloom.runtimes.audit import audit_rank
from ringloom.runtimes.emitted import load, source_of

dist.init_process_group("gloo")
rank = dist.get_rank()
work = rl.Workload(32, heads=2, kv_heads=1, head_dim=8, dtype="float32")
program = load(source_of(rl.plan("zigzag", work, 2, pass_="both"), "torch"))


def flash(q, k, v, causal):
    assert causal and q.shape[1:] == (16, 2, 8)
    out = program.attention(*(x.transpose(1, 2) for x in (q, k, v)))
    return out.transpose(1, 2), None


for attend in (transformers_attention(program), flash_shaped(flash, causal=True)):
    audit = rl.audit(attend, work, ranks=2, rank=rank, layout="zigzag")
    assert audit.exact, audit
report = audit_rank(program.attention, case_of(work, 2, "contiguous", passes="forward"), rank=rank)
assert [fault.kind for fault in report.faults] == ["another mask"], report
try:
    rl.audit(program.attention, work, ranks=3, rank=rank)
except rl.RingloomError as error:
    print(f"rank {rank}: {error}")
dist.destroy_process_group()
"""


@pytest.mark.skipif(not NIGHTLY, reason="three processes import transformers: 25 s")
def test_ranks_of_torchrun_audit_what_adapters_make(tmp_path: Path) -> None:
    (tmp_path / "audits.py").write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words = [*torchrun, "--nproc-per-node=2", str(tmp_path / "audits.py")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        assert f"rank {rank}: the group has 2 ranks, not the 3 of the case" in done.stdout
