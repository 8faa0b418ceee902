"""Emitted torch decoder layers: exact, and a backward pass that repeats no attention."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from codegen import emit
from planner.errors import PlanError
from planner.masks import Causal, Documents, Mask, Window
from planner.planning import Pair, plan
from planner.workload import Workload

torch = pytest.importorskip("torch")

from rank_threads import Events, in_threads, load  # noqa: E402  only where torch is

RUFF = Path(sys.executable).with_name("ruff")
WIDTHS = {"dim": 12, "hidden": 20}
EXACT = 1e-11


def pair(schedule: str, mask: Mask, seq: int, ranks: int) -> Pair:
    work = Workload(seq=seq, heads=4, kv_heads=2, head_dim=6, mask=mask, dtype="float64")
    return plan(schedule, work, ranks, pass_="both")


def layer(plans: Pair) -> ModuleType:
    program = load(emit(plans, "torch", layer=True))
    program.ROWS = 5  # several blocks of rows in every shard
    return program


def drawn(program: ModuleType, batch: int = 2) -> tuple[dict[str, Any], Any, Any]:
    """Parameters (norms that are not all ones), x and dy in the order of the sequence."""
    random = torch.Generator().manual_seed(3)
    shape = batch, program.SEQ, WIDTHS["dim"]
    x, dy = (torch.randn(shape, generator=random, dtype=torch.float64) for _ in range(2))
    params = program.init(7, torch.float64, **WIDTHS)
    for name in ("attention_norm", "ffn_norm"):
        noise = torch.rand(WIDTHS["dim"], generator=random, dtype=torch.float64)
        params[name] = (params[name].detach() + noise).requires_grad_()
    return params, x, dy


def leaves(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value.detach().clone().requires_grad_() for name, value in params.items()}


def gradients(program: ModuleType, apply: Any) -> tuple[Any, Any, dict[str, Any]]:
    """y, dx and the parameters' gradients of apply(params, shard, group), whole and summed."""
    params, x, dy = drawn(program)

    def body(group: Any) -> tuple[Any, Any, dict[str, Any]]:
        mine, own = program.positions(group.rank()), leaves(params)
        local = x[:, mine].clone().requires_grad_()
        y = apply(own, local, group)
        y.backward(dy[:, mine])
        return y.detach(), local.grad, {name: value.grad for name, value in own.items()}

    parts = in_threads(program.RANKS, body)
    y, dx = (program.unshard([part[n] for part in parts], axis=1) for n in (0, 1))
    return y, dx, {name: sum(part[2][name] for part in parts) for name in params}


def wanted(program: ModuleType) -> tuple[Any, Any, dict[str, Any]]:
    """The same by the reference on one device."""
    params, x, dy = drawn(program)
    own, x = leaves(params), x.requires_grad_()
    y = program.reference(own, x)
    y.backward(dy)
    return y.detach(), x.grad, {name: value.grad for name, value in own.items()}


def assert_equal(found: Any, truth: Any) -> None:
    for a, b in zip(found[:2], truth[:2], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=EXACT)
    for name, b in truth[2].items():
        torch.testing.assert_close(
            found[2][name], b, rtol=0, atol=EXACT, msg=lambda m, n=name: n + m
        )


def apply_layer(program: ModuleType) -> Any:
    return lambda params, x, group: program.decoder_layer(params, x, group=group)


CASES = [
    ("zigzag", Causal(), 37, 4),
    ("striped", Causal(), 37, 3),
    ("balanced", Causal(), 24, 4),
    ("usp:ulysses=2", Causal(), 29, 4),
    ("burst", Causal() & Documents((9, 20, 8)), 37, 4),
    ("zigzag", Causal() & Documents((9, 20, 8)), 37, 2),
    ("ulysses", Window(6), 31, 3),
    ("allgather:keep=1", Causal(), 21, 3),
    ("ring", Causal(), 2, 3),
]


@pytest.mark.parametrize(("schedule", "mask", "seq", "ranks"), CASES, ids=str)
def test_a_layer_and_all_its_gradients_are_the_reference_s(
    schedule: str, mask: Mask, seq: int, ranks: int
) -> None:
    program = layer(pair(schedule, mask, seq, ranks))
    assert_equal(gradients(program, apply_layer(program)), wanted(program))


def whole_layer(program: ModuleType) -> Any:
    """The same layer of the same parts, which backward computes again from its input."""

    def plain(params: dict[str, Any], x: Any, group: Any) -> Any:
        q, k, v = program.project(params, x, program.positions(group.rank()))
        return program.finish(params, x, program.attention(q, k, v, group=group))

    def checkpointed(params: dict[str, Any], x: Any, group: Any) -> Any:
        again = torch.utils.checkpoint.checkpoint
        return again(plain, params, x, group, use_reentrant=False)

    return checkpointed


@pytest.mark.parametrize("schedule", ["zigzag", "burst", "usp:ulysses=2"])
def test_backward_repeats_neither_kernels_nor_messages_of_attention(schedule: str) -> None:
    plans = pair(schedule, Causal() & Documents((12, 25)), 37, 4)
    attention, ours, theirs = (layer(plans) for _ in range(3))
    once, remat, whole = Events(attention), Events(ours), Events(theirs)

    def forward(group: Any) -> None:
        params, x, _ = drawn(attention)
        attention.decoder_layer(params, x[:, attention.positions(group.rank())], group=group)

    in_threads(4, forward)
    found = gradients(ours, apply_layer(ours))
    assert_equal(found, gradients(theirs, whole_layer(theirs)))
    assert once["kernel"] > 0
    assert once["messages"] > 0
    assert remat["kernel"] == once["kernel"]
    assert whole["kernel"] == 2 * once["kernel"]
    assert remat["kernel_backward"] == whole["kernel_backward"] > 0
    for what in ("messages", "bytes"):
        assert whole[what] - remat[what] == once[what]
    sent = [sum(len(move.src) for _, move in one.moves()) for one in plans]
    assert remat["messages"] == sum(sent)


def test_a_layer_keeps_its_input_and_what_attention_returned() -> None:
    program = layer(pair("zigzag", Causal(), 32, 1))
    params, x, _ = drawn(program)
    kept = dict[int, int]()

    def note(tensor: Any) -> Any:
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    def body(group: Any) -> None:
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            program.decoder_layer(params, x.requires_grad_(), group=group)

    in_threads(1, body)
    out_and_lse = 2 * program.HEADS * program.SEQ * (program.HEAD_DIM + 1) * 8
    assert sum(kept.values()) == x.nbytes + out_and_lse + sum(p.nbytes for p in params.values())


def test_the_reference_is_the_llama_layer_of_transformers() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    program = layer(pair("zigzag", Causal(), 19, 2))
    params, x, _ = drawn(program)
    config = llama.LlamaConfig(
        hidden_size=WIDTHS["dim"],
        intermediate_size=WIDTHS["hidden"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        rms_norm_eps=program.NORM_EPS,
        attn_implementation="sdpa",
    )
    theirs = llama.LlamaDecoderLayer(config, 0).double()
    theirs.load_state_dict({name: params[ours] for ours, name in NAMES.items()})
    at = torch.arange(19)[None]
    embeddings = llama.LlamaRotaryEmbedding(config)(x, at)
    y = theirs(x, position_embeddings=embeddings)
    # They compute the angles in 32 bits.
    torch.testing.assert_close(program.reference(params, x), y, rtol=0, atol=1e-5)


NAMES = {
    "attention_norm": "input_layernorm.weight",
    "wq": "self_attn.q_proj.weight",
    "wk": "self_attn.k_proj.weight",
    "wv": "self_attn.v_proj.weight",
    "wo": "self_attn.o_proj.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}


def test_backward_computes_again_under_the_autocast_of_forward() -> None:
    program = layer(pair("zigzag", Causal(), 32, 2))
    params, x, _ = drawn(program)
    params = {name: value.detach().float() for name, value in params.items()}

    def under_autocast(apply: Any) -> list[Any]:
        def body(group: Any) -> list[Any]:
            own = leaves(params)
            local = x[:, program.positions(group.rank())].float().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16):
                y = apply(own, local, group)
            y.sum().backward()
            return [y.detach(), local.grad, *(value.grad for value in own.values())]

        return [tensor for part in in_threads(2, body) for tensor in part]

    ours, theirs = under_autocast(apply_layer(program)), under_autocast(whole_layer(program))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2 * float(b.abs().max()))


# ---- what is refused


def test_plans_that_make_no_layer_are_refused() -> None:
    work = Workload(seq=16, heads=2, head_dim=4)
    with pytest.raises(PlanError, match="a decoder layer needs a backward plan too"):
        emit(plan("ring", work, 2), "torch", layer=True)
    longer = Workload(seq=16, kv_seq=20, heads=2, head_dim=4)
    with pytest.raises(PlanError, match="its own tokens: 16 queries, 20 keys"):
        emit(plan("ring", longer, 2, pass_="both"), "torch", layer=True)
    odd = Workload(seq=16, heads=2, head_dim=5)
    with pytest.raises(PlanError, match="even head_dim, not 5"):
        emit(plan("ring", odd, 2, pass_="both"), "torch", layer=True)
    with pytest.raises(PlanError, match="dynamic or a layer, not both"):
        emit(plan("ring", work, 2, pass_="both"), "torch", layer=True, dynamic=True)


def test_other_tokens_parameters_and_groups_are_refused_with_numbers() -> None:
    program = layer(pair("ring", Causal(), 8, 1))
    params, x, _ = drawn(program)

    def tried(params: dict[str, Any], x: Any) -> str:
        def body(group: Any) -> Any:
            return program.decoder_layer(params, x, group=group)

        with pytest.raises(ValueError, match=r" is |are|for") as error:
            in_threads(1, body)
        return str(error.value)

    assert tried(params, x[:, :7]) == "x is [2, 7, 12], not [batch, 8, 12]"
    assert tried(params, x.long()) == "x is torch.int64, not floats: embeddings, not tokens"
    assert tried(params | {"wk": params["wq"]}, x) == "wk is [24, 12], not [12, 12]"
    assert "the parameters are ['wq'], not" in tried({"wq": params["wq"]}, x)
    program.RANKS = 2
    assert tried(params, x) == "a program for 2 ranks, but the group has 1"


def test_second_derivatives_are_refused() -> None:
    program = layer(pair("ring", Causal(), 8, 1))
    params, x, _ = drawn(program)

    def body(group: Any) -> None:
        y = program.decoder_layer(params, x.requires_grad_(), group=group)
        (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        dx.sum().backward()

    with pytest.raises(RuntimeError, match="first derivatives only"):
        in_threads(1, body)


# ---- the file


@pytest.mark.skipif(not RUFF.exists(), reason="ruff is not installed")
@pytest.mark.parametrize("length", [88, 100])
def test_layer_files_are_formatted_and_free_of_lint(length: int, tmp_path: Path) -> None:
    for number, (schedule, mask, seq, ranks) in enumerate(CASES):
        source = emit(pair(schedule, mask, seq, ranks), "torch", layer=True)
        (tmp_path / f"{number}.py").write_text(source)
    option = ["--isolated", "--line-length", str(length)]
    for command in (["check", *option], ["format", "--diff", *option]):
        done = subprocess.run([RUFF, *command, tmp_path], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


SABOTAGE = {
    "nothing": ("", ""),
    "positions as they lie": ("positions(ctx.where[0].rank(), ctx.where[1])", "np.arange(48)"),
}


@pytest.mark.parametrize("what", SABOTAGE)
def test_a_layer_file_checks_itself(what: str, tmp_path: Path) -> None:
    path = tmp_path / "layer.py"
    source, (old, new) = emit(pair("zigzag", Causal(), 96, 2), "torch", layer=True), SABOTAGE[what]
    assert old in source
    path.write_text(source.replace(old, new))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    assert done.returncode == (what != "nothing"), done.stdout + done.stderr
    assert ("exact" if what == "nothing" else "WRONG") + " at 96 queries" in done.stdout
