"""Emitted files hold what they need and nothing else."""

import ast
from collections import Counter

import pytest

import ringloom as rl
from codegen.emitting import WRITERS

PUBLIC = {"attention", "decoder_layer", "shard", "unshard", "load"}  # for who uses the file
MASKS = {
    "full": rl.Full(),
    "causal": rl.Causal(),
    "documents": rl.Documents((10, 14)) & rl.Causal(),
}


def unused(source: str) -> set[str]:
    """Functions and classes of a file whose names appear only where they are defined."""
    tree = ast.parse(source)
    kinds = ast.FunctionDef, ast.ClassDef
    defined = Counter(node.name for node in tree.body if isinstance(node, kinds))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return set(defined) - names - PUBLIC


@pytest.mark.parametrize(("target", "kind"), WRITERS)
@pytest.mark.parametrize(
    "schedule", ["ring", "zigzag", "burst", "balanced", "allgather", "ulysses"]
)
def test_every_function_of_an_emitted_file_is_used(target: str, kind: str, schedule: str) -> None:
    how = {kind: True} if kind != "attention" else {}
    for mask in MASKS.values():
        for kv_heads in (2, 4):
            work = rl.Workload(seq=24, heads=4, kv_heads=kv_heads, head_dim=4, mask=mask)
            for pass_ in ("both",) if kind == "layer" else ("forward", "both"):
                pair = rl.plan(schedule, work, 4, pass_=pass_)
                assert not unused(rl.emit(pair, target, **how)), (mask, kv_heads, pass_)
