"""register(program)   an emitted torch program as an attention of Hugging Face transformers.

A model that is made with `attn_implementation=NAME` then attends through the program, each rank
with its shard of the tokens. Whatever a model asks of its attention and the plan does not say is
refused: dropout, padding, another mask or sliding window, softcap, sinks, another scale, other
heads, positions that are not those of the plan's layout.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
import torch.distributed as dist
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from planner.errors import PlanError
from planner.regions import FAR

# What a model may hand over that does not change what its attention means.
HARMLESS = {
    *("use_cache", "cache_position", "num_items_in_batch", "max_length_q", "max_length_k"),
    *("output_hidden_states", "output_attentions", "output_router_logits", "return_dict"),
    *("logits_to_keep", "shift_labels", "labels"),
}
Function = Callable[..., Any]
OURS: dict[str, Function] = {}  # names that were registered here, which may be registered again


def register(
    program: ModuleType, name: str = "ringloom", *, group: Any = None, any_mask: bool = False
) -> str:
    """Register an emitted program under a name for `attn_implementation`; returns the name.

    program: the imported file of `ringloom emit torch`, or of `emit torch --dynamic`: the model is
    then called with `tables=`. group: whose ranks share the sequence, by default the world when
    the model runs. The plan's mask must be what the model means: causal, or full for an encoder,
    within its sliding window, possibly cut into documents; `any_mask` says that the plan's mask is
    meant even if it is another one. Raises PlanError for a name that is taken, and, when the model
    runs, for whatever the plan does not say.
    """
    known: Any = ALL_ATTENTION_FUNCTIONS
    taken = name in known.valid_keys() and name not in OURS
    if taken or name == "eager":
        raise PlanError(f"transformers has an attention {name!r} already: choose another name")
    asked = Asked(program, group, any_mask)
    OURS[name] = asked.attend
    AttentionInterface.register(name, asked.attend)
    AttentionMaskInterface.register(name, asked.refuse_mask)
    return name


class Asked:
    """What a model asks of its attention, compared with what a program does."""

    def __init__(self, program: ModuleType, group: Any, any_mask: bool) -> None:
        if not hasattr(program, "attention") or not hasattr(program, "PLAN"):
            raise PlanError(f"{program!r} is no emitted program: import a file of `emit torch`")
        self.program, self.group, self.any_mask = program, group, any_mask
        self.seen: tuple[ReferenceType[Any], int, Any] | None = None  # the last positions

    def attend(
        self,
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        scaling: float | None = None,
        dropout: float = 0.0,
        sliding_window: int | None = None,
        is_causal: bool | None = None,
        position_ids: Any = None,
        tables: Any = None,
        **rest: Any,
    ) -> tuple[Any, None]:
        """The attention function: q, k, v [batch, heads, tokens, head_dim] of this rank's shard,
        result [batch, tokens, heads, head_dim]."""
        if attention_mask is not None:
            raise PlanError(f"an attention mask {[*attention_mask.shape]} besides the plan's own")
        if dropout:
            raise PlanError(f"dropout {dropout:g} in attention is not expressible: set it to 0")
        for name, argument in rest.items():
            if name not in HARMLESS and argument is not None:
                raise PlanError(f"{name} in attention is not expressible by a plan")
        if rest.get("output_attentions"):
            raise PlanError("attention weights are never whole on any rank: no output_attentions")
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        if not np.isclose(scale, self.program.SCALE, rtol=1e-6, atol=0):
            raise PlanError(f"the model scales scores by {scale}, the plan by {self.program.SCALE}")
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        self.refuse_other_mask(tables, causal, sliding_window)
        group = self.group or dist.group.WORLD
        self.refuse_other_positions(position_ids, group.rank(), tables)
        arguments = (query, key, value) if tables is None else (query, key, value, tables)
        out = self.program.attention(*arguments, group=group)
        return out.transpose(1, 2).contiguous(), None

    def mask(self, tables: Any) -> Any:
        """The plan's mask as boxes [n, 6], see planner.regions."""
        dynamic = hasattr(self.program, "Tables")
        if dynamic != (tables is not None):
            wanted = "takes tables: call the model with tables=" if dynamic else "takes no tables"
            raise PlanError(f"the registered program {wanted}")
        return self.program.MASK if tables is None else tables.mask

    def keys(self, tables: Any) -> int:
        """The length of the whole sequence."""
        return int(self.program.KV_SEQ if tables is None else tables.kv_seq)

    def refuse_other_mask(self, tables: Any, causal: bool, window: int | None) -> None:
        """PlanError unless the plan's mask is the model's, or the model's within documents."""
        boxes = self.mask(tables)
        if self.any_mask:
            return
        if window is not None and window >= self.keys(tables):
            window = None
        wanted = -FAR if window is None else 1 - window, 0 if causal else FAR
        same = (boxes[:, :2] == boxes[:, 2:4]).all() and (boxes[:, 4:] == wanted).all()
        if not same:
            model = "causal" if causal else "bidirectional"
            within = "" if window is None else f" with a sliding window of {window}"
            plan = self.program.PLAN.get("mask", "of these tables")
            raise PlanError(f"the model is {model}{within}, the plan's mask is {plan}")

    def refuse_other_positions(self, position_ids: Any, rank: int, tables: Any) -> None:
        """PlanError unless the model was told where the tokens of this shard are.

        Within documents, positions may count from the document's first token. The positions of a
        step are looked at once, not in every layer.
        """
        if position_ids is None:
            return
        version = position_ids._version  # it changes when the tensor is written into
        before = self.seen
        if before and before[0]() is position_ids and before[1:] == (version, tables):
            return
        where = (rank,) if tables is None else (rank, tables)
        right, found = self.program.positions(*where), position_ids.detach().cpu().numpy()
        first = np.zeros_like(right)
        for start, stop in self.mask(tables)[:, :2]:
            first[(start <= right) & (right < stop)] = max(start, 0)
        if found.shape[-1] != len(right) or not (
            (found == right).all() or (found == right - first).all()
        ):
            raise PlanError(
                f"position_ids of rank {rank} are {found[..., :4].tolist()} ..., but its"
                f" {len(right)} tokens are at {right[:4].tolist()} ...: pass positions({rank})"
            )
        self.seen = ref(position_ids), version, tables

    def refuse_mask(
        self,
        attention_mask: Any = None,
        local_size: int | None = None,
        use_vmap: bool = False,
        **_: Any,
    ) -> None:
        """The mask function: there is nothing to make, but what a model would make is looked at."""
        if attention_mask is not None and not attention_mask.all():
            hidden = int((~attention_mask.bool()).sum())
            raise PlanError(f"padding hides {hidden} tokens: make a plan with documents instead")
        if use_vmap and not self.any_mask:
            raise PlanError("the model alters its mask by a function, which no plan can know of")
        if local_size is not None and not self.any_mask and not hasattr(self.program, "Tables"):
            lows = self.program.MASK[:, 4]
            if local_size < self.keys(None) and (lows != 1 - local_size).any():
                raise PlanError(
                    f"the model attends within {local_size} tokens, the plan's mask is"
                    f" {self.program.PLAN['mask']}"
                )
