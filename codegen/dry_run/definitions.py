"""definitions(text, names)   what the passes of a program call, defined over other names."""

from functools import cache
from typing import Any

from codegen.assemble import module, needed
from codegen.imports import written

FRAMEWORKS = "torch", "jax"
PASSES = "forward", "backward", "forward_with_sinks", "backward_with_sinks"
POSITIONS = {"positions", "kv_positions"}


def definitions(text: str, names: dict[str, Any]) -> dict[str, Any]:
    """The definitions that the passes need, over `names`, which stand for some of them.

    Imports of frameworks are left out: `names` has what stands for those, too.
    """
    imports, pieces = module.__wrapped__(text)
    kept = [x for x in imports if (x.module or x.source).split(".")[0] not in FRAMEWORKS]
    named = {name for piece in pieces for name in piece.names}
    own = [p for p in pieces if p.names and not p.names & names.keys() and p.owner not in named]
    given = {line.name for line in kept} | names.keys()
    chosen = needed(own, given, [name for name in (*PASSES, *POSITIONS) if name in named])
    source = "\n".join([written(kept), *(piece.text for piece in own if piece in chosen)])
    scope = dict(names)
    exec(compile(f"from __future__ import annotations\n{source}", "<program>", "exec"), scope)
    for name in POSITIONS & scope.keys():  # which each rank asks of all
        scope[name] = cache(scope[name])
    return scope
