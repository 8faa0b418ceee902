"""A small LLaMA of transformers, its text, and emitted programs for its attention."""

from threading import Lock
from types import ModuleType
from typing import Any

import torch
import transformers

import ringloom as rl
from rank_threads import in_threads, load

SEQ, BATCH, VOCABULARY = 26, 2, 31
ONE_AT_A_TIME = Lock()  # weights are drawn from the one random state of all threads
TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "use_cache": False,
}


def emitted(
    mask: rl.Mask | None = None,
    ranks: int = 1,
    heads: int = 4,
    schedule: str = "zigzag",
    scale: float | None = None,
    seq: int = SEQ,
    kv_seq: int = SEQ,
    **how: Any,
) -> ModuleType:
    sizes = {"heads": heads, "kv_heads": 2, "head_dim": 4, "scale": scale}
    sizes |= {"seq": seq, "kv_seq": kv_seq}
    work = rl.Workload(**sizes, mask=mask or rl.Causal(), dtype="float64")
    return load(rl.emit(rl.plan(schedule, work, ranks, pass_="both"), "torch", **how))


def llama(attention: str, **changes: Any) -> Any:
    """The same random model for every attention, in float64."""
    config = transformers.LlamaConfig(**TINY | changes, attn_implementation=attention)
    with ONE_AT_A_TIME:
        torch.manual_seed(11)
        return transformers.LlamaForCausalLM(config).double()


def text() -> tuple[Any, Any]:
    """Tokens and the tokens that follow them; the last one of a row has none."""
    random = torch.Generator().manual_seed(2)
    tokens = torch.randint(VOCABULARY, (BATCH, SEQ + 1), generator=random)
    return tokens[:, :-1], tokens[:, 1:]


def trained(model: Any, at: Any, positions: Any, **more: Any) -> dict[str, Any]:
    """Loss and gradients of some tokens; the loss counts in shares of all tokens."""
    tokens, targets = text()
    loss = model(
        input_ids=tokens[:, at],
        position_ids=positions,
        labels=targets[:, at],
        shift_labels=targets[:, at].contiguous(),
        num_items_in_batch=targets.numel(),
        **more,
    ).loss
    loss.backward()
    return {"loss": loss.detach()} | {n: p.grad for n, p in model.named_parameters()}


def sharded(program: ModuleType, name: str, tables: Any = None, **changes: Any) -> list[Any]:
    """The run on all ranks of a program, each with a registered name and a model of its own."""

    def body(group: Any) -> dict[str, Any]:
        rank = group.rank()
        at = program.positions(*((rank,) if tables is None else (rank, tables)))
        own = rl.transformers_attention(program, f"{name}-{rank}", group=group)
        more = {} if tables is None else {"tables": tables}
        return trained(llama(own, **changes), at, torch.as_tensor(at)[None], **more)

    return in_threads(program.RANKS, body)
