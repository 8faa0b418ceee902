"""The decoder layers of the examples: exact, and attention runs once per step of training."""

from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ringloom.codegen import emit, mask_tables
from ringloom.planner.masks import Causal
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload

torch = pytest.importorskip("torch")

import layer_torch as example  # noqa: E402  only where torch is
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402
from torch.utils.checkpoint import CheckpointPolicy  # noqa: E402

from rank_threads import counted, in_threads, load  # noqa: E402

WIDTHS = {"dim": 12, "hidden": 20, "heads": 4, "kv_heads": 2, "head_dim": 6}
SEQ, RANKS = 40, 4
WORK = Workload(SEQ, heads=4, kv_heads=2, head_dim=6, mask=Causal(), dtype="float64")
dense = partial(scaled_dot_product_attention, is_causal=True, enable_gqa=True)


def drawn() -> tuple[dict[str, Any], Any, Any]:
    """Parameters (norms that are not all ones), x and dy in the order of the sequence."""
    random = torch.Generator().manual_seed(3)
    x, dy = torch.randn(2, 2, SEQ, WIDTHS["dim"], generator=random, dtype=torch.float64)
    params = example.init(7, dtype=torch.float64, **WIDTHS)
    for name in ("attention_norm", "ffn_norm"):
        noise = torch.rand(WIDTHS["dim"], generator=random, dtype=torch.float64)
        params[name] = (params[name].detach() + noise).requires_grad_()
    return params, x, dy


def step(apply: Any, at: Any, attend: Any, backward: bool = True) -> Any:
    """y, dx and the parameters' gradients, for the tokens at some positions."""
    params, x, dy = drawn()
    local = x[:, at].clone().requires_grad_()
    y = apply(params, local, at, attend)
    if not backward:
        return y
    y.backward(dy[:, at])
    return y.detach(), local.grad, {name: value.grad for name, value in params.items()}


def on_ranks(program: ModuleType, given: list[Any], apply: Any, backward: bool = True) -> Any:
    """The results of `step` on all ranks."""

    def body(group: Any) -> Any:
        def attend(q: Any, k: Any, v: Any) -> Any:
            return program.attention(q, k, v, *given, group=group)

        return step(apply, program.positions(group.rank(), *given), attend, backward)

    return in_threads(RANKS, body)


def made(schedule: str, dynamic: bool) -> tuple[ModuleType, list[Any]]:
    """A program, and its tables where they are an argument."""
    pair = plan(schedule, WORK, RANKS, pass_="both")
    program = load(emit(pair, "torch", dynamic=dynamic))
    return program, [program.Tables(mask_tables(pair, "torch"))] if dynamic else []


CASES = [("zigzag", False), ("balanced", False), ("allgather:keep=1", False), ("zigzag", True)]


@pytest.mark.parametrize(("schedule", "dynamic"), CASES)
def test_a_layer_is_that_of_dense_attention_and_attends_once(schedule: str, dynamic: bool) -> None:
    program, given = made(schedule, dynamic)
    with counted(program) as forward:
        on_ranks(program, given, example.layer, backward=False)
    with counted(program) as once:
        parts = on_ranks(program, given, example.decoder_layer)
    assert once["attend"] == forward["attend"] > 0
    assert once["attend_backward"] > 0
    truth = step(example.layer, torch.arange(SEQ), dense)
    for n in (0, 1):
        whole = program.unshard([part[n] for part in parts], *given, axis=1)
        torch.testing.assert_close(whole, truth[n], rtol=0, atol=1e-11)
    for name, value in truth[2].items():
        total = sum(part[2][name] for part in parts)
        torch.testing.assert_close(total, value, rtol=0, atol=1e-11)


def test_a_checkpoint_without_its_policy_attends_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    program, given = made("zigzag", False)
    with counted(program) as forward:
        on_ranks(program, given, example.layer, backward=False)
    plain = CheckpointPolicy.PREFER_RECOMPUTE
    monkeypatch.setattr(example, "keep_attention", lambda *_, **__: plain)
    with counted(program) as twice:
        on_ranks(program, given, example.decoder_layer)
    assert twice["attend"] == 2 * forward["attend"]


LLAMA = {
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **{f"w{letter}": f"self_attn.{letter}_proj" for letter in "qkvo"},
    **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}


def of_linear(name: str, value: Any) -> Any:
    """A parameter as torch.nn.Linear has it."""
    if name in ("wo", "down"):
        return value.flatten(0, -2).T
    return value.flatten(0, -2) if value.ndim > 1 else value


@pytest.mark.parametrize("target", ["torch", "jax"])
def test_the_layer_is_transformers_llama(target: str) -> None:
    """The other tests compare layers whose norms, rotation and network are the same code."""
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    params, x, _ = drawn()
    params = {name: value.detach().float() for name, value in params.items()}
    if target == "torch":
        ours = example.layer(params, x.float(), torch.arange(SEQ), dense)
    else:
        import layer_jax

        from jax_devices import jax

        arrays = {name: jax.numpy.asarray(value.numpy()) for name, value in params.items()}
        attend = partial(dense_jax, jax)
        ours = layer_jax.layer(arrays, x.float().numpy(), np.arange(SEQ), attend)
    config = modeling.LlamaConfig(
        hidden_size=WIDTHS["dim"],
        intermediate_size=WIDTHS["hidden"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        rms_norm_eps=1e-5,
        attn_implementation="sdpa",
    )
    layer = modeling.LlamaDecoderLayer(config, 0)
    weights = {f"{LLAMA[n]}.weight": of_linear(n, value) for n, value in params.items()}
    layer.load_state_dict(weights)
    turns = modeling.LlamaRotaryEmbedding(config)(x.float(), torch.arange(SEQ)[None])
    theirs = layer(x.float(), position_embeddings=turns).detach()
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)


def dense_jax(jax: Any, q: Any, k: Any, v: Any) -> Any:
    """Causal attention of [batch, heads, tokens, head_dim] by JAX."""
    swapped = (jax.numpy.swapaxes(x, 1, 2) for x in (q, k, v))
    return jax.numpy.swapaxes(jax.nn.dot_product_attention(*swapped, is_causal=True), 1, 2)
