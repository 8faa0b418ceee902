"""transformers_attention(program)   use an emitted torch program with Hugging Face Transformers.
shard_batch(program, ids)         a rank's shard of a batch, as arguments for such a model.
to_block_mask(work)               a mask for torch's flex attention, and `from_block_mask` back.
"""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from ringloom.planner.masks import Mask
from ringloom.planner.optional import needing
from ringloom.planner.workload import Workload


def transformers_attention(
    program: ModuleType,
    name: str = "ringloom",
    *,
    group: Any = None,
    any_mask: bool = False,
    any_positions: bool = False,
) -> str:
    """Register an imported file of `ringloom emit torch` as an attention of transformers models.

    Returns the name to give as `attn_implementation`. Every rank then calls the model with its
    shard of the tokens, `position_ids` of `program.positions(rank)`, and labels that were shifted
    before they were sharded; the gradients of the weights are shares to be summed over the group.
    group: the ranks that share the sequence, by default the world. The program's mask must be the
    model's, unless `any_mask` is set; its documents are those in which position_ids begin again.
    Models whose position_ids cannot be compared with the rank's are refused on several ranks,
    unless `any_positions` is set: make sure that they are right.
    Raises RingloomError without transformers, for a name that is taken, and when the model asks for
    attention that the plan does not express (dropout, padding, softcap, another mask, other heads
    or positions).
    """
    needing("hf", "ringloom.runtimes.huggingface").register(
        program, name, group, any_mask, any_positions
    )
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
    """Returns a rank's shard of a batch of whole sequences, as arguments for a transformers model.

    ids [batch, seq]; labels the same, not shifted, by default ids; positions by default 0, 1, 2 ...
    Targets are shifted before they are sharded, and losses of the ranks add up to the mean.
    """
    adapter = needing("hf", "ringloom.runtimes.huggingface")
    batch: dict[str, Any] = adapter.shard_batch(program, ids, labels, positions, group, tables)
    return batch


def to_block_mask(work: Workload, *, block_size: int = 128, device: Any = "cpu") -> Any:
    """Returns the mask of a workload as a `BlockMask` for `torch`'s flex attention.

    It has the tables that `create_block_mask` makes, without a dense matrix of seq x kv_seq.
    block_size: tokens of a block's side. Raises RingloomError without torch.
    """
    adapter = needing("torch", "ringloom.runtimes.torch.block_masks")
    return adapter.to_block_mask(work, block_size, device)


def from_block_mask(block_mask: Any, *, heads: Iterable[int] | None = None) -> Mask:
    """Returns the mask that allows the pairs of a `BlockMask`: Full, Causal, or Slices of them.

    Its mask_mod is evaluated on whole rows of blocks in turn. heads: those that count, by default
    all: where heads see different keys, each group that sees the same is a program. Raises
    RingloomError where batch rows or these heads differ, and without torch.
    """
    adapter = needing("torch", "ringloom.runtimes.torch.block_masks")
    mask: Mask = adapter.from_block_mask(block_mask, heads)
    return mask
