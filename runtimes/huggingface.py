"""Connects emitted torch programs to Hugging Face Transformers.

register(program)            registers a program under a name
shard_batch(program, ids)    returns a rank's shard of a batch, as arguments for a model

A model created with `attn_implementation=NAME` calls the program on each rank, with the rank's
shard of the tokens. Raises RingloomError for attention that the plan cannot express: dropout,
padding, another mask or sliding window, softcap, sinks, another scale, other heads, positions of
another layout.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from inspect import getclosurevars, signature
from types import ModuleType
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
import torch
from transformers import MODEL_MAPPING, AttentionInterface, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ringloom.planner.errors import RingloomError, as_tuple_of, brief
from ringloom.planner.masks import parse
from ringloom.planner.masks.regions import FAR
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.position_ids import Shard, check_positions, refuse_unsharded

# Arguments of a model that do not change its attention.
HARMLESS = {
    *("use_cache", "cache_position", "num_items_in_batch", "max_length_q", "max_length_k"),
    *("output_hidden_states", "output_attentions", "output_router_logits", "return_dict"),
    *("logits_to_keep", "shift_labels", "labels"),
}
# Arguments that describe packed documents.
PACKING = {"cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"}
KINDS = "causal", "bidirectional"  # of masks that can be compared with the plan's
# Functions of transformers that make masks of these kinds.
COMPARABLE = {
    *(f"{kind}_mask_function" for kind in KINDS),
    *("and_masks", "packed_sequence_mask_function", "remap_positions_for_packed_sequence"),
    *("sliding_window_overlay", "sliding_window_bidirectional_overlay"),
}
# Layers of transformers that mix tokens without attention.
RECURRENT = {"linear_attention", "mamba", "conv", "hybrid", "hybrid_sliding"}
IGNORED = -100  # the label of tokens that transformers excludes from the loss
Function = Callable[..., Any]
REGISTERED: dict[str, Function] = {}  # by this module; these names may be registered again


def register(
    program: ModuleType, name: str, group: Any, any_mask: bool, any_positions: bool
) -> None:
    """Registers a program, see `ringloom.transformers_attention`; None stands for the world group.

    A model with a dynamic program is called with `tables=`. The plan's mask must be the model's:
    causal, or full for an encoder, within its sliding window, possibly cut into documents.
    """
    functions: Any = ALL_ATTENTION_FUNCTIONS
    is_taken = name in functions.valid_keys() and name not in REGISTERED
    if is_taken or name == "eager":
        raise RingloomError(f"transformers has an attention {name!r} already: choose another name")
    adapter = Adapter(program, group, any_mask, any_positions)
    # The comparison of a call with the plan stays outside compiled graphs.
    REGISTERED[name] = torch.compiler.disable(adapter.attend)
    AttentionInterface.register(name, REGISTERED[name])
    AttentionMaskInterface.register(name, adapter.refuse_mask)


def shard_batch(
    program: ModuleType, ids: Any, labels: Any, positions: Any, group: Any, tables: Any
) -> dict[str, Any]:
    """Returns a rank's shard of a batch, see `ringloom.shard_batch`.

    Labels are -100 for tokens without a loss. Positions, [seq] or [batch, seq], may restart at
    packed documents. `tables` are those of a dynamic program.
    """
    labels = ids if labels is None else labels
    as_tuple_of(torch.Tensor, (ids, labels), "ids and labels")
    targets = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    if positions is None:
        positions = torch.arange(ids.shape[1], device=ids.device)
    rank = (group or require_program(program).dist.group.WORLD).rank()
    options = {} if tables is None else {"tables": tables}
    tensors = {
        "input_ids": ids,
        "position_ids": positions.expand(ids.shape),
        "labels": labels,
        "shift_labels": targets,
    }
    batch = {name: program.shard(x, rank, axis=1, **options) for name, x in tensors.items()}
    return batch | options | {"num_items_in_batch": int((targets != IGNORED).sum())}


def require_program(program: ModuleType) -> ModuleType:
    """Returns an emitted torch program; raises RingloomError for anything else."""
    if not all(hasattr(program, name) for name in ("attention", "PLAN", "dist")):
        raise RingloomError(
            f"{brief(program)} is not an emitted program: import a file that `emit torch` wrote"
        )
    return program


class Adapter:
    """The attention of a model: calls a program, and refuses calls that its plan cannot express."""

    def __init__(
        self, program: ModuleType, group: Any, any_mask: bool, any_positions: bool = False
    ) -> None:
        self.program, self.group = require_program(program), group
        self.any_mask, self.any_positions = any_mask, any_positions
        self.accepted: tuple[ReferenceType[Any], int, Any] | None = None  # the last positions
        # Kinds and sliding windows of the masks that the model made.
        self.masks, self.called = set[tuple[str | None, int | None]](), False
        self.packed: Any = None  # position_ids, if the model made its mask from them

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
        **options: Any,
    ) -> tuple[Any, None]:
        """Returns this rank's shard of the output, [batch, tokens, heads, head_dim], and None.

        query, key, value: [batch, heads, tokens, head_dim].
        """
        self.called = True  # the next mask belongs to another call, even if this call is refused
        if attention_mask is not None:
            raise RingloomError(
                f"attention_mask {[*attention_mask.shape]} is not supported: the mask of the plan"
                " applies"
            )
        if dropout:
            raise RingloomError(f"dropout {dropout:g} in attention is not supported: set it to 0")
        for name, argument in options.items():
            if name in PACKING and argument is not None:
                raise RingloomError(
                    f"{name} is not supported: packed documents are compared with the plan by"
                    f" position_ids, so omit {name}"
                )
            if name not in HARMLESS and argument is not None and argument is not False:
                raise RingloomError(f"{name} in attention is not supported by plans")
        if options.get("output_attentions"):
            raise RingloomError(
                "output_attentions is not supported: no rank has complete attention weights"
            )
        if options.get("output_router_logits") and self.program.RANKS > 1:
            raise RingloomError(
                "the router loss is not a sum over ranks: set output_router_logits=False"
            )
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        if not np.isclose(scale, plan_scale := self.program.PLAN["scale"], rtol=1e-6, atol=0):
            raise RingloomError(f"the model scales scores by {scale}, but the plan by {plan_scale}")
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        self.boxes(tables)  # refuses unexpected and missing tables
        if not causal and options.get("shift_labels") is not None:
            raise RingloomError(
                "shard_batch creates labels of next tokens, but the model is bidirectional:"
                " shard its batch and labels with the program's `shard` instead"
            )
        group, tokens = self.group or self.program.dist.group.WORLD, query.shape[2]
        rank = group.rank()
        self.refuse_other_keys(rank, tokens, key.shape[2], tables)
        if self.may_be_whole(rank, tokens, position_ids, tables):
            refuse_unsharded(position_ids.detach().cpu().numpy(), rank, self.program.RANKS)
        length = self.length(rank, tokens, tables)
        self.refuse_other_mask(tables, causal, sliding_window, length)
        window = sliding_window if sliding_window and sliding_window < length else None
        model_mask = "" if not causal else "causal" if window is None else f"window:{window - 1}"
        self.refuse_other_positions(module, position_ids, rank, length, tables, model_mask)
        arguments = (query, key, value) if tables is None else (query, key, value, tables)
        plan, compared = self.program.PLAN, tables is None and not self.any_positions
        seq = length - plan["kv_seq"] + plan["seq"] if compared else None  # known from positions
        out = self.program.attention(*arguments, group=group, seq=seq)
        return out.transpose(1, 2).contiguous(), None

    def boxes(self, tables: Any) -> Array:
        """Returns the plan's mask as boxes [n, 6], see ringloom.planner.masks.regions."""
        dynamic = hasattr(self.program, "Tables")
        if dynamic != (tables is not None):
            remedy = "takes tables: call the model with tables=" if dynamic else "takes no tables"
            raise RingloomError(f"the registered program {remedy}")
        if tables is not None:
            return np.array(tables.boxes, np.int64).reshape(-1, 6)
        plan = self.program.PLAN
        return parse(plan["mask"]).up_to(plan["kv_seq"]).region().pieces

    def may_be_whole(self, rank: int, tokens: int, position_ids: Any, tables: Any) -> bool:
        """Returns True if a rank's tokens may be a whole sequence instead of its shard.

        A rank may also have this number of tokens because the sequence is longer than planned.
        """
        ranks, plan = self.program.RANKS, self.program.PLAN if tables is None else vars(tables)
        if ranks == 1 or tokens != plan["seq"] or position_ids is None:
            return False
        if tables is None:
            with suppress(ValueError):  # raised by programs for the planned length only
                positions = self.program.positions(rank, ranks * tokens)
                return not bool((position_ids.cpu() == positions).all())
        return True

    def length(self, rank: int, tokens: int, tables: Any) -> int:
        """Returns the number of keys of the whole sequence, from the tokens of this rank."""
        if tables is not None:
            return int(tables.kv_seq)
        plan = self.program.PLAN
        planned = len(self.program.positions(rank)) == tokens
        return int(plan["kv_seq"] if planned else tokens * plan["ranks"])

    def refuse_other_keys(self, rank: int, queries: int, keys: int, tables: Any) -> None:
        """Raises RingloomError unless keys and queries are the same tokens or differ as planned."""
        plan = self.program.PLAN if tables is None else vars(tables)
        if keys != queries and plan["seq"] == plan["kv_seq"]:
            raise RingloomError(
                f"rank {rank} has {keys} keys and {queries} queries, but the plan has equal numbers"
                " of them: it supports neither a cache (use_cache) nor cross-attention"
            )
        if self.program.RANKS > 1 and hasattr(self.program, "kv_positions"):
            arguments = (rank,) if tables is None else (rank, tables)
            if not torch.equal(
                self.program.positions(*arguments), self.program.kv_positions(*arguments)
            ):
                raise RingloomError(
                    f"the plan gives rank {rank} queries and keys of different tokens, but the"
                    " model has queries and keys of the same tokens"
                )

    def refuse_other_mask(self, tables: Any, causal: bool, window: int | None, length: int) -> None:
        """Raises RingloomError unless the plan's mask is the model's, possibly within documents."""
        boxes = self.boxes(tables)
        if self.any_mask:
            return
        kind = "causal" if causal else "bidirectional"
        kinds = {
            mask_kind for mask_kind, _ in self.masks
        }  # both, for a decoder with cross-attention
        if (mask_kind := next((known for known in KINDS if known in kinds), kind)) != kind:
            raise RingloomError(f"the attention module is {kind}, but its mask is {mask_kind}")
        narrowest = min((n for _, n in self.masks if n is not None), default=None)
        window, narrowest = (None if n is None or n >= length else n for n in (window, narrowest))
        wanted = -FAR if window is None else 1 - window, 0 if causal else FAR
        plan_boxes, model = (np.clip(x, -length, length) for x in (boxes, np.array(wanted)))
        matches = (plan_boxes[:, :2] == plan_boxes[:, 2:4]).all() and (
            plan_boxes[:, 4:] == model
        ).all()
        matches &= np.diff(plan_boxes[:, :2].clip(0)).sum() == length  # each query is in a box
        # Windows that attention does not receive, or that have two sides, cannot be compared.
        if not (matches and (narrowest is None if window is None else causal)):
            window = window or narrowest
            window_text = "" if window is None else f" with a sliding window of {window}"
            plan = self.mask_name(tables)
            raise RingloomError(f"the model is {kind}{window_text}, but the plan's mask is {plan}")

    def mask_name(self, tables: Any) -> str:
        """Returns the name of the plan's mask for messages."""
        return "that of its tables" if tables is not None else str(self.program.PLAN["mask"])

    def refuse_other_positions(
        self, module: Any, position_ids: Any, rank: int, length: int, tables: Any, model_mask: str
    ) -> None:
        """Raises RingloomError unless position_ids are the positions of this shard's tokens.

        On one rank, if attention does not receive position_ids, those of the mask are compared.
        A tensor that a previous layer passed and that has not changed since is not compared again.
        """
        if position_ids is None and self.program.RANKS > 1 and not self.any_positions:
            raise RingloomError(
                f"{type(module).__name__} does not receive position_ids, so they cannot be compared"
                f" with those of rank {rank}: any_positions=True accepts the model's positions"
            )
        if position_ids is None or self.any_positions:
            if self.program.RANKS > 1 or self.any_mask:
                return
            position_ids = self.packed
        version = -1 if position_ids is None else position_ids._version  # changes with the values
        last = self.accepted
        if last and last[0]() is position_ids and last[1] == version and last[2] is tables:
            return
        plan = self.program.PLAN if tables is None else vars(tables)
        cached = plan["kv_seq"] - plan["seq"]
        sequence = length - cached if tables is None else tables
        positions = np.asarray(self.program.positions(rank, sequence)) + cached
        starts, boxes = np.zeros_like(positions), self.boxes(tables)
        if (boxes[:, :2] == boxes[:, 2:4]).all():  # documents
            for start, stop in boxes[:, :2]:
                starts[(start <= positions) & (positions < stop)] = max(start, 0)
        shard = Shard(
            rank=rank,
            ranks=self.program.RANKS,
            positions=positions,
            starts=starts,
            total=length - cached,
            cached=cached,
            mask=self.mask_name(tables),
            model_mask=model_mask,
        )
        actual = positions if position_ids is None else position_ids.detach().cpu().numpy()
        check_positions(actual, shard, self.any_mask)
        if position_ids is not None:
            self.accepted = ref(position_ids), version, tables

    def refuse_other_layers(self, config: Any, kind: Any) -> None:
        """Raises RingloomError for a model with layers that cannot run on shards."""
        layers = RECURRENT & {*(getattr(config, "layer_types", None) or ())}
        if layers or getattr(kind, "_is_stateful", False):
            raise RingloomError(
                f"{type(config).__name__} has layers that mix tokens without attention, which would"
                " mix only the tokens of a rank: use a model in which all layers have attention"
            )
        if kind and counts_positions(kind) and not self.any_positions:
            raise RingloomError(
                f"{kind.__name__} counts positions itself, from the first token of each rank"
            )

    def refuse_mask(
        self,
        attention_mask: Any = None,
        local_size: int | None = None,
        mask_function: Function | None = None,
        config: Any = None,
        **_: Any,
    ) -> None:
        """Raises RingloomError for a mask that differs from the plan's; returns no mask tensor."""
        earlier = set() if self.called else self.masks
        self.called = True  # until this mask is accepted
        kind: Any = MODEL_MAPPING.get(type(config), None)
        takes = getattr(kind, "_can_set_attn_implementation", None)
        if takes and not takes():
            raise RingloomError(f"{kind.__name__} does not support attn_implementation")
        if self.program.RANKS > 1:
            self.refuse_other_layers(config, kind)
        if attention_mask is not None and not attention_mask.all():
            hidden = int((~attention_mask.bool()).sum())
            raise RingloomError(
                f"padding masks {hidden} tokens: make a plan for packed documents instead"
            )
        parts = [*parts_of(mask_function)] if mask_function else []
        makers = {*map(name_of, parts)}
        self.packed = next((ids for part in parts if (ids := packed_by(part)) is not None), None)
        kind = next((kind for kind in KINDS if f"{kind}_mask_function" in makers), None)
        others = makers - COMPARABLE
        if others and not self.any_mask:
            raise RingloomError(
                f"the model makes its mask with {', '.join(sorted(others))}, which cannot be"
                " compared with the plan's mask: any_mask=True uses the plan's mask"
            )
        # For a model without windows, transformers may pass a window of 0.
        self.masks, self.called = earlier | {(kind, local_size or None)}, False


def counts_positions(kind: type) -> bool:
    """Returns True for a model that takes no position_ids, or derives them from input ids."""
    members = vars(sys.modules[kind.__module__]).values()
    derives = any(hasattr(member, "create_position_ids_from_input_ids") for member in members)
    return derives or "position_ids" not in signature(kind.forward).parameters  # type: ignore[attr-defined]


def parts_of(mask_function: Function) -> Iterator[Function]:
    """Yields the functions that a mask of transformers consists of, outermost first."""
    yield mask_function
    for cell in getattr(mask_function, "__closure__", None) or ():
        inner = cell.cell_contents
        for part in inner if isinstance(inner, tuple) else (inner,):
            if callable(part):
                yield from parts_of(part)


def name_of(part: Function) -> str:
    """Returns the name of the transformers function that made a part of a mask."""
    return str(getattr(part, "__qualname__", type(part).__name__)).partition(".")[0]


def packed_by(part: Function) -> Any:
    """Returns the position_ids of packed documents in this part of a mask, or None."""
    if name_of(part) != "remap_positions_for_packed_sequence":
        return None
    return getclosurevars(part).nonlocals["position_ids"]
