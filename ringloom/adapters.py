"""transformers_attention(program)   registers an emitted torch program in Transformers.
shard_batch(program, ids)         returns a rank's shard of a batch as arguments of a model.
to_block_mask(work)               returns a mask for PyTorch's flex attention.
from_block_mask(block_mask)       returns the mask of flex attention as a mask of a workload.
"""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from ringloom.planner.masks import Mask
from ringloom.planner.optional import import_optional
from ringloom.planner.workload import Workload


def transformers_attention(
    program: ModuleType,
    name: str = "ringloom",
    *,
    group: Any = None,
    any_mask: bool = False,
    any_positions: bool = False,
) -> str:
    """Registers an imported file of `ringloom emit torch` as an attention of transformers models.

    Returns the name to pass as `attn_implementation`. Every rank then calls the model with its
    shard of the tokens, `position_ids` from `program.positions(rank)`, and labels that were shifted
    before sharding. Sum the weight gradients over the group.

    group: the ranks that share the sequence, by default all ranks. any_mask: accept a program whose
    mask differs from that of the model; documents start where position_ids restart. any_positions:
    on several ranks, accept models whose position_ids cannot be compared with those of the rank;
    you must then ensure that they are correct.
    Raises RingloomError without transformers, for a name that is in use, and if the model needs
    attention that the plan cannot express (dropout, padding, softcap, another mask, other heads or
    positions).
    """
    import_optional("hf", "ringloom.runtimes.huggingface").register(
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

    ids, labels: [batch, seq]; labels are not shifted and default to ids. positions: by default
    0, 1, 2 ... Targets are shifted before sharding, and the losses of the ranks add up to the mean.
    """
    adapter = import_optional("hf", "ringloom.runtimes.huggingface")
    batch: dict[str, Any] = adapter.shard_batch(program, ids, labels, positions, group, tables)
    return batch


def to_block_mask(work: Workload, *, block_size: int = 128, device: Any = "cpu") -> Any:
    """Returns the mask of a workload as a `BlockMask` for `torch`'s flex attention.

    The tables equal those of `create_block_mask`, but no dense seq x kv_seq matrix is built.
    block_size: tokens per side of a block. Raises RingloomError without torch.
    """
    adapter = import_optional("torch", "ringloom.runtimes.torch.block_masks")
    return adapter.to_block_mask(work, block_size, device)


def from_block_mask(block_mask: Any, *, heads: Iterable[int] | None = None) -> Mask:
    """Returns a `BlockMask` as a mask of a workload: Full, Causal or Slices.

    Evaluates the mask_mod on one row of blocks at a time. heads: the heads to convert, by default
    all; if masks differ between heads, convert and emit each group of equal heads separately.
    Raises RingloomError if the masks of these heads or of the batch rows differ, and without torch.
    """
    adapter = import_optional("torch", "ringloom.runtimes.torch.block_masks")
    mask: Mask = adapter.from_block_mask(block_mask, heads)
    return mask
