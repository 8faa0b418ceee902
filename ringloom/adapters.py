"""transformers_attention(program)   an emitted torch program inside a Hugging Face model.
shard_batch(program, ids)         what a rank gives such a model, in one call.
"""

from types import ModuleType
from typing import Any

from ringloom.optional import needing


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
    name = _adapter().register(program, name, group=group, any_mask=any_mask)
    return name


def shard_batch(
    program: ModuleType,
    ids: Any,
    labels: Any = None,
    positions: Any = None,
    *,
    group: Any = None,
    tables: Any = None,
) -> dict[str, Any]:
    """A rank's part of a batch of whole sequences, as arguments for a transformers model.

    ids [batch, seq]; labels the same, not shifted, by default ids; positions by default 0, 1, 2 ...
    Targets are shifted before they are sharded, and losses of the ranks add up to the mean.
    """
    batch: dict[str, Any] = _adapter().shard_batch(
        program, ids, labels, positions, group=group, tables=tables
    )
    return batch


def _adapter() -> Any:
    return needing("hf", "runtimes.huggingface")
