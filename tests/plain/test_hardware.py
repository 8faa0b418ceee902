"""Hardware: constants with sources, presets, and files that say in one line what is wrong."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringloom.planner.errors import RingloomError
from ringloom.simulator.hardware import Constant, Hardware, hardware, machines, presets
from ringloom.simulator.hardware.read import PRESETS
from ringloom.simulator.hardware.schema import OPTIONAL, UNITS

DEFAULTS = {*OPTIONAL}
NAMES = {
    *("a100-nvlink", "a100-pcie", "h100", "h200", "h800", "b200"),
    *("tpu-v3", "tpu-v4", "tpu-v5e", "tpu-v5p"),
}
GOOD = (PRESETS / "a100-nvlink.toml").read_text()

# What breaks a file: its text, and what the complaint must say.
BROKEN = {
    "[": "cannot be read",
    "x = 1\n" + GOOD: "unknown key x = 1",
    GOOD + "\n[chip]\ncores = { value = 1, source = 's', calibrated = true }": "chip.cores",
    GOOD.replace("capacity", "size"): "unknown constant memory.size",
    GOOD.replace("\nranks = {", "\nchips = {"): "unknown constant node.chips",
    GOOD.replace("value = 2039e9", "value = -1"): "memory.bandwidth = -1 is negative",
    GOOD.replace("value = 2039e9", "value = 0"): "memory.bandwidth = 0 is too small",
    GOOD.replace("value = 2039e9", "value = 5e-324"): "memory.bandwidth = 4.94066e-324 is",
    GOOD.replace("value = 2039e9", "value = 1e300"): "bandwidth = 1e+300 is more than 1e+30",
    GOOD.replace("value = 2039e9", "value = nan"): "memory.bandwidth: the value nan is not between",
    GOOD.replace("value = 2039e9", "value = '1'"): "the value '1' is not a number",
    GOOD.replace("value = 2039e9", "value = true"): "the value True is not a number",
    GOOD.replace("forward = { value = 0.735", "forward = { value = 1.5"): "forward = 1.5 is more",
    GOOD.replace("causal = { value = 1.042", "causal = { value = 0.9"): "causal = 0.9 is too small",
    GOOD.replace("value = 128", "value = 1.5"): "attention.tile_q = 1.5 is not a whole number",
    GOOD.replace("value = 80e9, source", "value = 80e9, origin"): "memory.capacity must be {",
    GOOD.replace('name = "a100-nvlink"', "name = 3"): "the name must be a string, not 3",
}


@pytest.mark.parametrize("name", presets())
def test_every_preset_loads_and_every_constant_has_a_source(name: str) -> None:
    preset = hardware(name)
    assert preset.name == name
    assert UNITS.keys() <= preset.constants.keys() <= UNITS.keys() | OPTIONAL.keys()
    for constant in preset.constants.values():
        assert len(constant.source) > 3
        assert isinstance(constant.calibrated, bool)


def test_the_promised_presets_exist() -> None:
    assert set(presets()) >= NAMES


@pytest.mark.parametrize("name", machines())
def test_every_kernel_of_a_chip_has_its_curve_and_a_source(name: str) -> None:
    machine, chip = hardware(name), hardware(name.partition(":")[0])
    assert machine.kernel in machine.kernels == chip.kernels
    assert machine.name == name
    for key in ("attention.forward", "attention.backward", "attention.tile_q"):
        assert machine.constants[key].source
    for key in chip.constants:
        if not key.startswith("attention."):
            assert chip[key] == machine[key]


def test_the_kernel_of_a_chip_is_the_one_that_emitted_programs_call() -> None:
    assert hardware("h100").constants == hardware("h100:cudnn").constants
    assert {name for name in machines() if name.startswith("h100")} == {
        *("h100", "h100:cudnn", "h100:fa3", "h100:fa2")
    }
    assert hardware("a100-nvlink:fa2").constants == hardware("a100-nvlink").constants
    with pytest.raises(RingloomError, match=r"kernel of h100 'fa9': .* cudnn, fa3, fa2"):
        hardware("h100:fa9")


def test_a_kernel_of_a_file_is_named_behind_its_path(tmp_path: Path) -> None:
    text = (PRESETS / "h100.toml").read_text()
    (path := tmp_path / "mine.toml").write_text(text)
    assert hardware(f"{path}:fa2").constants == hardware("h100:fa2").constants
    path.write_text(text.replace('kernel = "cudnn"', 'kernel = "fa9"'))
    with pytest.raises(RingloomError, match="kernel = 'fa9' is none of"):
        hardware(path)
    path.write_text(text.replace('kernel = "cudnn"', "kernel = { name = 3 }"))
    with pytest.raises(RingloomError, match=r"kernel = \{'name': 3\} is none of"):
        hardware(path)
    path.write_text(text.replace("[kernels.fa2]", "[kernels.fa2]\nspeed = 3"))
    with pytest.raises(RingloomError, match=r"attention\.speed must be"):
        hardware(path)


def test_a_node_is_joined_in_one_of_four_ways(tmp_path: Path) -> None:
    kinds = {name: hardware(name).node for name in presets()}
    assert {*kinds.values()} == {"switch", "torus", "mesh", "pcie"}
    text = (PRESETS / "mi300x.toml").read_text()
    for kind, said in (("star", "unknown kind of node 'star'"), ("pcie", "missing node.bridges")):
        (path := tmp_path / "mine.toml").write_text(text.replace('"mesh"', f'"{kind}"'))
        with pytest.raises(RingloomError, match=said):
            hardware(path)


def test_effective_bandwidths_lie_below_the_data_sheet() -> None:
    spec = {"a100-nvlink": 300e9, "h100": 450e9, "h200": 450e9, "h800": 200e9, "b200": 900e9}
    for name, bandwidth in spec.items():
        assert 0.5 * bandwidth < hardware(name).links[0].bandwidth < bandwidth


def test_tpu_attention_is_uncalibrated() -> None:
    for name in (n for n in presets() if n.startswith("tpu")):
        for pass_ in ("forward", "backward"):
            assert hardware(name).constants[f"attention.{pass_}"].value == 0.5
            assert not hardware(name).constants[f"attention.{pass_}"].calibrated


@pytest.mark.parametrize("name", presets())
def test_a_preset_reads_back_the_same_from_json(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(tomllib.loads((PRESETS / f"{name}.toml").read_text())))
    assert hardware(path) == hardware(name)
    assert hash(hardware(path)) == hash(hardware(name))


@pytest.mark.parametrize("text", BROKEN)
def test_a_bad_file_gives_one_clear_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(RingloomError) as refused:
        hardware(path)
    assert BROKEN[text] in str(refused.value)
    assert str(refused.value).startswith(f"hardware file {path}: ")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_no_file_gives_anything_but_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, content: str | bytes
) -> None:
    for suffix in ("toml", "json"):
        path = tmp_path_factory.getbasetemp() / f"noise.{suffix}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(RingloomError):
            hardware(path)


def test_an_unknown_name_lists_the_presets() -> None:
    with pytest.raises(RingloomError, match="'A100': did you mean 'a100-nvlink'"):
        hardware("A100")
    with pytest.raises(RingloomError, match=r"'a100': .* a100-nvlink, a100-pcie, a800, b200, b300"):
        hardware("a100")


@pytest.mark.parametrize("key", UNITS)
def test_a_missing_constant_is_named(key: str) -> None:
    constants = {k: c for k, c in hardware("h100").constants.items() if k != key}
    with pytest.raises(RingloomError, match=f"missing {key}"):
        Hardware("mine", constants)


def test_what_an_older_file_leaves_out_has_no_effect() -> None:
    known = hardware("h100").constants
    old = Hardware("old", {key: known[key] for key in UNITS})
    assert all(not old.option(key) or old.option(key) == 1 for key in OPTIONAL if key in DEFAULTS)
    assert (
        old.option("attention.traffic", "forward")
        == old.option("attention.traffic", "backward")
        == 0
    )
    assert old.option("attention.launch", "backward") == old.option("attention.host") == 0
    assert old.efficiency("forward", 64) == old.efficiency("forward") == old["attention.forward"]
    assert old.tile_for(64) == old.skips(old.tile) == old.tile
    assert [link.share for link in old.links] == [0, 0]


def test_a_backward_pass_may_have_its_own_kernels() -> None:
    own = {"launch": 1e-3, "causal": 1.5, "skip_q": 32, "head_half": 0}
    machine = hardware("h100").changed({f"attention.backward_{key}": v for key, v in own.items()})
    launches = [machine.option("attention.launch", pass_) for pass_ in ("backward", "forward")]
    assert launches[0] == 1e-3 > launches[1]
    assert (
        machine.option("attention.causal", "backward")
        == 1.5
        > machine.option("attention.causal", "forward")
    )
    assert (machine.skips((64, 64)), machine.skips((64, 64), "backward")) == ((64, 64), (32, 64))
    assert machine.efficiency("backward", 64) == machine.efficiency("backward", 128)


def test_narrow_heads_may_have_a_tile_of_their_own() -> None:
    assert [hardware("h100:fa3").tile_for(size) for size in (64, 65)] == [(192, 128), (128, 128)]


def test_scores_cost_as_much_as_products_where_heads_are_small() -> None:
    h100 = hardware("h100")
    half = h100["attention.head_half"]
    assert h100.efficiency("forward", 64) / h100.efficiency("forward") == pytest.approx(
        (1 + half / 128) / (1 + half / 64)
    )


@pytest.mark.parametrize("key", UNITS)
def test_no_constant_may_be_negative(key: str) -> None:
    with pytest.raises(RingloomError, match=f"{key} = -1 "):
        hardware("h100").changed({key: -1})


def test_a_changed_constant_is_uncalibrated_and_leaves_the_preset_alone() -> None:
    before = hardware("h100").links[0].bandwidth
    changed = hardware("h100").changed({"intra.bandwidth": 1e9}, "what if")
    with pytest.raises(RingloomError, match="changes must be numbers by constant, not"):
        changed.changed({"intra": {"bandwidth": 1}})  # type: ignore[dict-item]
    assert changed.links[0].bandwidth == 1e9
    assert changed.constants["intra.bandwidth"] == Constant(1e9, "what if", False)
    assert hardware("h100").links[0].bandwidth == before
    with pytest.raises(TypeError):
        changed.constants["intra.alpha"] = Constant(1.0, "no", True)  # type: ignore[index]
