"""transformers_attention(program)   an emitted torch program inside a Hugging Face model."""

from types import ModuleType
from typing import Any

from planner.errors import PlanError


def transformers_attention(
    program: ModuleType, name: str = "ringloom", *, group: Any = None, any_mask: bool = False
) -> str:
    """Register an imported file of `ringloom emit torch` as an attention of transformers models.

    Returns the name to give as `attn_implementation`. Every rank then calls the model with its
    shard of the tokens, `position_ids` of `program.positions(rank)`, and labels that were shifted
    before they were sharded; the gradients of the weights are shares to be summed over the group.
    group: whose ranks share the sequence, by default the world. The program's mask must be what
    the model means, unless `any_mask` says that the program's is meant. Raises PlanError without
    transformers, for a name that is taken, and when the model asks for what the plan does not say
    (dropout, padding, softcap, another mask, other heads or positions).
    """
    try:
        from runtimes.huggingface import register
    except ImportError as error:
        raise PlanError(
            f"transformers is needed here, pip install 'ringloom[hf]': {error}"
        ) from None
    return register(program, name, group=group, any_mask=any_mask)
