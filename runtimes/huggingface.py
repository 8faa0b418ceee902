"""Connects emitted torch programs to Hugging Face Transformers.

register(program)            registers a program under a name
shard_batch(program, ids)    returns a rank's shard of a batch, as arguments for a model

A model created with `attn_implementation=NAME` calls the program, each rank with its shard of the
tokens. Attention that the plan cannot express is refused: dropout, padding, another mask or sliding
window, softcap, sinks, another scale, other heads, positions of another layout.
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
from ringloom.runtimes.position_ids import Shard, refuse_other, refuse_unsharded

# Arguments of a model that do not change its attention.
HARMLESS = {
    *("use_cache", "cache_position", "num_items_in_batch", "max_length_q", "max_length_k"),
    *("output_hidden_states", "output_attentions", "output_router_logits", "return_dict"),
    *("logits_to_keep", "shift_labels", "labels"),
}
# Arguments that say which documents are packed.
PACKING = {"cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"}
KINDS = "causal", "bidirectional"  # of masks to compare with the plan's
# Functions of transformers that make these masks.
COMPARED = {
    *(f"{kind}_mask_function" for kind in KINDS),
    *("and_masks", "packed_sequence_mask_function", "remap_positions_for_packed_sequence"),
    *("sliding_window_overlay", "sliding_window_bidirectional_overlay"),
}
# Layers of transformers that mix tokens without attention.
RECURRENT = {"linear_attention", "mamba", "conv", "hybrid", "hybrid_sliding"}
IGNORED = -100  # the label of tokens that transformers excludes from the loss
Function = Callable[..., Any]
OURS: dict[str, Function] = {}  # registered here; these names may be registered again


def register(
    program: ModuleType, name: str, group: Any, any_mask: bool, any_positions: bool
) -> None:
    """Registers a program, see `ringloom.transformers_attention`; group None is the world.

    A model with a dynamic program is called with `tables=`. The plan's mask must be the model's:
    causal, or full for an encoder, within its sliding window, possibly cut into documents.
    """
    known: Any = ALL_ATTENTION_FUNCTIONS
    taken = name in known.valid_keys() and name not in OURS
    if taken or name == "eager":
        raise RingloomError(f"transformers has an attention {name!r} already: choose another name")
    adapter = Adapter(program, group, any_mask, any_positions)
    # The comparison of a call with the plan stays outside compiled graphs.
    OURS[name] = torch.compiler.disable(adapter.attend)
    AttentionInterface.register(name, OURS[name])
    AttentionMaskInterface.register(name, adapter.refuse_mask)


def shard_batch(
    program: ModuleType, ids: Any, labels: Any, positions: Any, group: Any, tables: Any
) -> dict[str, Any]:
    """Returns a rank's shard of a batch, see `ringloom.shard_batch`.

    Labels are -100 for tokens without a loss; positions, [seq] or [batch, seq], may restart at
    packed documents; tables are those of a dynamic program.
    """
    labels = ids if labels is None else labels
    as_tuple_of(torch.Tensor, (ids, labels), "ids and labels")
    targets = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    if positions is None:
        positions = torch.arange(ids.shape[1], device=ids.device)
    rank = (group or checked(program).dist.group.WORLD).rank()
    given = {} if tables is None else {"tables": tables}
    whole = {
        "input_ids": ids,
        "position_ids": positions.expand(ids.shape),
        "labels": labels,
        "shift_labels": targets,
    }
    batch = {name: program.shard(x, rank, axis=1, **given) for name, x in whole.items()}
    return batch | given | {"num_items_in_batch": int((targets != IGNORED).sum())}


def checked(program: ModuleType) -> ModuleType:
    """Returns an emitted torch program; raises RingloomError for anything else."""
    if not all(hasattr(program, name) for name in ("attention", "PLAN", "dist")):
        raise RingloomError(
            f"{brief(program)} is no emitted program: import a file that `emit torch` wrote"
        )
    return program


class Adapter:
    """Calls a program as a model's attention; refuses arguments that its plan cannot express."""

    def __init__(
        self, program: ModuleType, group: Any, any_mask: bool, any_positions: bool = False
    ) -> None:
        self.program, self.group = checked(program), group
        self.any_mask, self.any_positions = any_mask, any_positions
        self.seen: tuple[ReferenceType[Any], int, Any] | None = None  # the last positions
        # Masks that the model made: their kinds, and their sliding windows.
        self.masks, self.called = set[tuple[str | None, int | None]](), False
        self.packed: Any = None  # positions of documents, if the model made its mask from them

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
        """Returns the attention of this rank's shard, [batch, tokens, heads, head_dim], and None.

        query, key, value: [batch, heads, tokens, head_dim].
        """
        self.called = True  # the next mask belongs to another call, even if this one is refused
        if attention_mask is not None:
            raise RingloomError(f"a mask {[*attention_mask.shape]} besides the plan's own")
        if dropout:
            raise RingloomError(f"dropout {dropout:g} in attention is not expressible: set it to 0")
        for name, argument in rest.items():
            if name in PACKING and argument is not None:
                raise RingloomError(
                    f"{name} in attention says which documents are packed, which is compared with"
                    " the plan by position_ids alone: leave it out"
                )
            if name not in HARMLESS and argument is not None and argument is not False:
                raise RingloomError(f"{name} in attention is not expressible by a plan")
        if rest.get("output_attentions"):
            raise RingloomError("no rank has whole attention weights: no output_attentions")
        if rest.get("output_router_logits") and self.program.RANKS > 1:
            raise RingloomError(
                "a router's loss of all tokens is no sum over ranks: set output_router_logits=False"
            )
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        if not np.isclose(scale, own := self.program.PLAN["scale"], rtol=1e-6, atol=0):
            raise RingloomError(f"the model scales scores by {scale}, the plan by {own}")
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        self.boxes(tables)  # refuses unexpected and missing tables
        if not causal and rest.get("shift_labels") is not None:
            raise RingloomError(
                "shift_labels are of next tokens, but the model is bidirectional, and losses of its"
                " ranks would not add up: take the program's `shard` instead of shard_batch"
            )
        group, tokens = self.group or self.program.dist.group.WORLD, query.shape[2]
        rank = group.rank()
        self.refuse_other_keys(rank, tokens, key.shape[2], tables)
        if self.may_be_whole(rank, tokens, position_ids, tables):
            refuse_unsharded(position_ids.detach().cpu().numpy(), rank, self.program.RANKS)
        length = self.length(rank, tokens, tables)
        self.refuse_other_mask(tables, causal, sliding_window, length)
        window = sliding_window if sliding_window and sliding_window < length else None
        within = "" if not causal else "causal" if window is None else f"window:{window - 1}"
        self.refuse_other_positions(module, position_ids, rank, length, tables, within)
        arguments = (query, key, value) if tables is None else (query, key, value, tables)
        plan, compared = self.program.PLAN, tables is None and not self.any_positions
        seq = length - plan["kv_seq"] + plan["seq"] if compared else None  # known from positions
        out = self.program.attention(*arguments, group=group, seq=seq)
        return out.transpose(1, 2).contiguous(), None

    def boxes(self, tables: Any) -> Array:
        """Returns the plan's mask as boxes [n, 6], see ringloom.planner.masks.regions."""
        dynamic = hasattr(self.program, "Tables")
        if dynamic != (tables is not None):
            wanted = "takes tables: call the model with tables=" if dynamic else "takes no tables"
            raise RingloomError(f"the registered program {wanted}")
        if tables is not None:
            return np.array(tables.boxes, np.int64).reshape(-1, 6)
        plan = self.program.PLAN
        return parse(plan["mask"]).up_to(plan["kv_seq"]).region().pieces

    def may_be_whole(self, rank: int, tokens: int, position_ids: Any, tables: Any) -> bool:
        """Returns True if a rank has as many tokens as the planned sequence, so may be unsharded.

        They may still be the shard of a sequence that is longer by the number of ranks, if the
        program supports any length.
        """
        ranks, plan = self.program.RANKS, self.program.PLAN if tables is None else vars(tables)
        if ranks == 1 or tokens != plan["seq"] or position_ids is None:
            return False
        if tables is None:
            with suppress(ValueError):  # raised by programs for the planned length only
                at = self.program.positions(rank, ranks * tokens)
                return not bool((position_ids.cpu() == at).all())
        return True

    def length(self, rank: int, tokens: int, tables: Any) -> int:
        """Returns the length of the whole sequence, given the tokens of this rank."""
        if tables is not None:
            return int(tables.kv_seq)
        plan = self.program.PLAN
        planned = len(self.program.positions(rank)) == tokens
        return int(plan["kv_seq"] if planned else tokens * plan["ranks"])

    def refuse_other_keys(self, rank: int, queries: int, keys: int, tables: Any) -> None:
        """Raises RingloomError unless keys and queries are the same tokens, or as planned."""
        plan = self.program.PLAN if tables is None else vars(tables)
        if keys != queries and plan["seq"] == plan["kv_seq"]:
            raise RingloomError(
                f"rank {rank} has {keys} keys and {queries} queries, but the plan has as many of"
                " both: neither a cache (use_cache) nor cross-attention is expressible"
            )
        if self.program.RANKS > 1 and hasattr(self.program, "kv_positions"):
            where = (rank,) if tables is None else (rank, tables)
            if not torch.equal(self.program.positions(*where), self.program.kv_positions(*where)):
                raise RingloomError(
                    f"the plan's queries and keys of rank {rank} are other tokens, a model's are of"
                    " the same"
                )

    def refuse_other_mask(self, tables: Any, causal: bool, window: int | None, length: int) -> None:
        """Raises RingloomError unless the plan's mask is the model's, possibly within documents."""
        boxes = self.boxes(tables)
        if self.any_mask:
            return
        kind = "causal" if causal else "bidirectional"
        kinds = {made for made, _ in self.masks}  # both, for a decoder with cross-attention
        if (made := next((known for known in KINDS if known in kinds), kind)) != kind:
            raise RingloomError(f"an attention says it is {kind}, but its mask is {made}")
        near = min((n for _, n in self.masks if n is not None), default=None)
        window, near = (None if n is None or n >= length else n for n in (window, near))
        wanted = -FAR if window is None else 1 - window, 0 if causal else FAR
        own, model = (np.clip(x, -length, length) for x in (boxes, np.array(wanted)))
        same = (own[:, :2] == own[:, 2:4]).all() and (own[:, 4:] == model).all()
        same &= np.diff(own[:, :2].clip(0)).sum() == length  # each query is in a box
        # A window that attention does not get, or that has two sides, is not compared.
        if not (same and (near is None if window is None else causal)):
            window = window or near
            within = "" if window is None else f" with a sliding window of {window}"
            plan = self.mask_name(tables)
            raise RingloomError(f"the model is {kind}{within}, the plan's mask is {plan}")

    def mask_name(self, tables: Any) -> str:
        """Returns the plan's mask as messages name it."""
        return "of these tables" if tables is not None else str(self.program.PLAN["mask"])

    def refuse_other_positions(
        self, module: Any, position_ids: Any, rank: int, length: int, tables: Any, model: str
    ) -> None:
        """Raises RingloomError unless position_ids are the positions of this shard's tokens.

        On one rank, if attention does not get them, those of the mask count. A tensor that a
        previous layer passed in unchanged is not compared again.
        """
        if position_ids is None and self.program.RANKS > 1 and not self.any_positions:
            raise RingloomError(
                f"{type(module).__name__} does not get position_ids, so they cannot be compared"
                f" with those of rank {rank}: any_positions=True accepts the model's"
            )
        if position_ids is None or self.any_positions:
            if self.program.RANKS > 1 or self.any_mask:
                return
            position_ids = self.packed
        version = -1 if position_ids is None else position_ids._version  # grows when written into
        before = self.seen
        if before and before[0]() is position_ids and before[1] == version and before[2] is tables:
            return
        plan = self.program.PLAN if tables is None else vars(tables)
        cached = plan["kv_seq"] - plan["seq"]
        whole = length - cached if tables is None else tables
        at = np.asarray(self.program.positions(rank, whole)) + cached
        starts, boxes = np.zeros_like(at), self.boxes(tables)
        if (boxes[:, :2] == boxes[:, 2:4]).all():  # documents
            for start, stop in boxes[:, :2]:
                starts[(start <= at) & (at < stop)] = max(start, 0)
        shard = Shard(
            rank=rank,
            ranks=self.program.RANKS,
            at=at,
            starts=starts,
            whole=length - cached,
            cached=cached,
            mask=self.mask_name(tables),
            model=model,
        )
        given = at if position_ids is None else position_ids.detach().cpu().numpy()
        refuse_other(given, shard, self.any_mask)
        if position_ids is not None:
            self.seen = ref(position_ids), version, tables

    def refuse_other_layers(self, config: Any, kind: Any) -> None:
        """Raises RingloomError for a model with layers that cannot run on shards."""
        layers = RECURRENT & {*(getattr(config, "layer_types", None) or ())}
        if layers or getattr(kind, "_is_stateful", False):
            raise RingloomError(
                f"{type(config).__name__} has layers that mix tokens without attention, which would"
                " mix only those of their rank: use a model in which all layers have attention"
            )
        if kind and counts_itself(kind) and not self.any_positions:
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
        """Refuses masks that the plan does not express; makes none: the program has its own."""
        earlier = set() if self.called else self.masks
        self.called = True  # unless this one is accepted
        kind: Any = MODEL_MAPPING.get(type(config), None)
        takes = getattr(kind, "_can_set_attn_implementation", None)
        if takes and not takes():
            raise RingloomError(f"{kind.__name__} does not support attn_implementation")
        if self.program.RANKS > 1:
            self.refuse_other_layers(config, kind)
        if attention_mask is not None and not attention_mask.all():
            hidden = int((~attention_mask.bool()).sum())
            raise RingloomError(f"padding hides {hidden} tokens: plan for documents instead")
        parts = [*parts_of(mask_function)] if mask_function else []
        makers = {*map(name_of, parts)}
        self.packed = next((ids for part in parts if (ids := packed_by(part)) is not None), None)
        kind = next((kind for kind in KINDS if f"{kind}_mask_function" in makers), None)
        others = makers - COMPARED
        if others and not self.any_mask:
            raise RingloomError(
                f"the model makes its mask with {', '.join(sorted(others))}, which cannot be"
                " compared with the plan's: any_mask=True uses the plan's"
            )
        # If a model has no window, transformers may pass a window of 0 for no layer.
        self.masks, self.called = earlier | {(kind, local_size or None)}, False


def counts_itself(kind: type) -> bool:
    """Returns True for a model that takes no position_ids, or derives them from input ids."""
    own = vars(sys.modules[kind.__module__]).values()
    counting = any(hasattr(part, "create_position_ids_from_input_ids") for part in own)
    return counting or "position_ids" not in signature(kind.forward).parameters  # type: ignore[attr-defined]


def parts_of(mask_function: Function) -> Iterator[Function]:
    """Yields the functions that make up a mask of transformers, outermost first."""
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
    """Returns the position_ids of packed documents if this part of a mask contains them."""
    if name_of(part) != "remap_positions_for_packed_sequence":
        return None
    return getclosurevars(part).nonlocals["position_ids"]
