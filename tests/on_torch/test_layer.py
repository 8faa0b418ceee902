"""Emitted torch decoder layers: exact, and a backward pass that does not recompute attention."""

from contextlib import nullcontext
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from codegen import emit
from codegen.layout import layout_of
from codegen.programs import Program
from codegen.torch import write
from codegen.torch.by_tables import dynamic
from planner.errors import PlanError
from planner.masks import Causal, Documents, Mask, Window
from planner.planning import plan
from planner.plans import Plans
from planner.workload import Workload
from runtimes import emitted

torch = pytest.importorskip("torch")

from rank_threads import counted, in_threads, load, self_check  # noqa: E402  only where torch is

WIDTHS = {"dim": 12, "hidden": 20}
EXACT = 1e-11


def pair(schedule: str, mask: Mask, seq: int, ranks: int) -> Plans:
    work = Workload(seq=seq, heads=4, kv_heads=2, head_dim=6, mask=mask, dtype="float64")
    return plan(schedule, work, ranks, pass_="both")


def layer(plans: Plans, kind: str) -> tuple[ModuleType, list[Any]]:
    """The program, and its tables where they are an argument."""
    made = Program("torch", *plans, layout_of(plans.first), None, "a test", layer=True)
    if kind == "loops":
        program = load(emit(plans, "torch", layer=True))
    elif kind == "tables":
        program = load(write(made))
    else:
        program = load(dynamic.write(replace(made, dynamic=True)))
    program.rows = 5  # several blocks of rows in every shard
    given = [program.Tables(dynamic.tables(made))] if kind == "dynamic" else []
    return program, given


def drawn(program: ModuleType, seq: int) -> tuple[dict[str, Any], Any, Any]:
    """Parameters (norms that are not all ones), x and dy in the order of the sequence."""
    random = torch.Generator().manual_seed(3)
    x, dy = (
        torch.randn(2, seq, WIDTHS["dim"], generator=random, dtype=torch.float64) for _ in range(2)
    )
    params = program.init(7, torch.float64, **WIDTHS)
    for name in ("attention_norm", "ffn_norm"):
        noise = torch.rand(WIDTHS["dim"], generator=random, dtype=torch.float64)
        params[name] = (params[name].detach() + noise).requires_grad_()
    return params, x, dy


def leaves(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value.detach().clone().requires_grad_() for name, value in params.items()}


def gradients(program: ModuleType, given: list[Any], seq: int) -> tuple[Any, Any, dict[str, Any]]:
    """y, dx and the parameters' gradients, whole and summed."""
    params, x, dy = drawn(program, seq)

    def body(group: Any) -> tuple[Any, Any, dict[str, Any]]:
        at, own = program.positions(group.rank(), *given), leaves(params)
        local = x[:, at].clone().requires_grad_()
        y = program.decoder_layer(own, local, *given, group=group)
        y.backward(dy[:, at])
        return y.detach(), local.grad, {name: value.grad for name, value in own.items()}

    parts = in_threads(program.RANKS, body)
    y, dx = (program.unshard([part[n] for part in parts], *given, axis=1) for n in (0, 1))
    return y, dx, {name: sum(part[2][name] for part in parts) for name in params}


def wanted(program: ModuleType, given: list[Any], seq: int) -> tuple[Any, Any, dict[str, Any]]:
    """The same by the reference on one device."""
    params, x, dy = drawn(program, seq)
    own, x = leaves(params), x.requires_grad_()
    y = program.reference(own, x, *given)
    y.backward(dy)
    return y.detach(), x.grad, {name: value.grad for name, value in own.items()}


CASES = [
    ("zigzag", Causal(), 40, 4),
    ("balanced", Causal(), 24, 4),
    ("usp:ulysses=2", Causal(), 32, 4),
    ("burst", Causal() & Documents((9, 20, 8)), 37, 4),
    ("ulysses", Window(6), 31, 3),
    ("allgather:keep=1", Causal(), 21, 3),
]


@pytest.mark.parametrize("kind", ["loops", "tables", "dynamic"])
@pytest.mark.parametrize(("schedule", "mask", "seq", "ranks"), CASES, ids=str)
def test_a_layer_and_all_its_gradients_are_the_reference_s(
    schedule: str, mask: Mask, seq: int, ranks: int, kind: str
) -> None:
    program, given = layer(pair(schedule, mask, seq, ranks), kind)
    ours, truth = gradients(program, given, seq), wanted(program, given, seq)
    for a, b in zip(ours[:2], truth[:2], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=EXACT)
    for name, b in truth[2].items():
        torch.testing.assert_close(ours[2][name], b, rtol=0, atol=EXACT)


LLAMA = {
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **{f"w{letter}": f"self_attn.{letter}_proj" for letter in "qkvo"},
    **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}


@pytest.mark.parametrize("target", ["torch", "jax"])
def test_the_reference_of_a_layer_is_transformers_llama(target: str) -> None:
    """A layer and its reference share norms, rotation and network, so both could be wrong."""
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    source = emit(pair("ring", Causal(), 9, 1), target, layer=True)
    program, array = emitted.load(source), torch.from_numpy
    if target == "jax":
        from jax_devices import jax

        array = jax.numpy.asarray
    random = np.random.default_rng(0)
    shapes = {name: value.shape for name, value in program.init(0, **WIDTHS).items()}
    params = {name: random.standard_normal(shape, "f4") for name, shape in shapes.items()}
    x = random.standard_normal((2, 9, WIDTHS["dim"]), "f4")
    ours = program.reference({name: array(value) for name, value in params.items()}, array(x))
    config = modeling.LlamaConfig(
        hidden_size=WIDTHS["dim"],
        intermediate_size=WIDTHS["hidden"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        rms_norm_eps=1e-5,
        attn_implementation="sdpa",
    )
    layer, given = modeling.LlamaDecoderLayer(config, 0), torch.from_numpy(x)
    weights = {
        LLAMA[name]: value if target == "torch" else value.T for name, value in params.items()
    }
    layer.load_state_dict(
        {f"{name}.weight": torch.tensor(value) for name, value in weights.items()}
    )
    turns = modeling.LlamaRotaryEmbedding(config)(given, torch.arange(9)[None])
    theirs = layer(given, position_embeddings=turns).detach()
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["loops", "tables", "dynamic"])
def test_backward_repeats_no_attention(kind: str) -> None:
    program, given = layer(pair("zigzag", Causal(), 40, 4), kind)
    params, x, _ = drawn(program, 40)

    def forward(group: Any) -> None:
        at = program.positions(group.rank(), *given)
        program.decoder_layer(params, x[:, at], *given, group=group)

    with counted(program) as once:
        in_threads(4, forward)
    with counted(program) as both:
        gradients(program, given, 40)
    assert both["attend"] == once["attend"] > 0
    assert both["attend_backward"] > 0


@pytest.mark.parametrize("kind", [{}, {"dynamic": True}], ids=str)
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("SCALE = 6**-0.5", "SCALE = 5**-0.5"), ("return dx + dx_before, None", "return dx, None")],
)
def test_a_file_checks_its_layer(kind: dict[str, bool], right: str, wrong: str) -> None:
    source = emit(pair("zigzag", Causal(), 40, 2), "torch", layer=True, **kind)
    self_check(source)
    assert right in source
    with pytest.raises(AssertionError, match="not exact"):
        self_check(source.replace(right, wrong))


def test_a_file_checks_its_layer_where_a_rank_has_no_token() -> None:
    self_check(emit(pair("ring", Causal(), 2, 3), "torch", layer=True))


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


@pytest.mark.parametrize(
    ("mask", "refused"),
    [
        ("tree:8,8/-,0", False),
        ("tree:4,4,8/-,0,0", True),  # the second branch goes on where the first one began
        ("tree:4,4,8/-,0,0 | global:1", True),
        ("tree:4,0,12/-,0,0", False),
        ("causal & documents:4,12", False),
        ("documents:4,12/8,8", True),
        ("causal & (documents:4,12 | prefix:2)", False),
    ],
)
@pytest.mark.parametrize("target", ["torch", "jax"])
def test_rotary_positions_are_places_in_the_sequence(mask: str, refused: bool, target: str) -> None:
    pair = plan("ring", Workload(seq=16, mask=mask, heads=2, head_dim=4), 2, pass_="both")
    with pytest.raises(PlanError, match="rotates by places") if refused else nullcontext():
        emit(pair, target, layer=True)


def test_other_tokens_and_parameters_are_refused() -> None:
    program, _ = layer(pair("ring", Causal(), 8, 1), "tables")
    params, x, _ = drawn(program, 8)

    def tried(params: dict[str, Any], x: Any) -> str:
        with pytest.raises(ValueError, match=r" is |are|for") as error:
            in_threads(1, lambda group: program.decoder_layer(params, x, group=group))
        return str(error.value)

    assert "not floats [batch, 8, 12]" in tried(params, x[:, :7])
    assert "torch.int64" in tried(params, x.long())
    assert tried(params | {"wk": params["wq"]}, x) == "wk is [24, 12], not [12, 12]"
    assert "the parameters are ['wq'], not" in tried({"wq": params["wq"]}, x)
