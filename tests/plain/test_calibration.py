"""Calibration: constants are found again from times that they made, and from this machine."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import CommandLine
from ringloom import calibrating
from ringloom.calibrating import calibrate, links, medians, peaks, samples
from ringloom.planner.errors import RingloomError
from ringloom.planner.ir import Pass
from ringloom.planner.kernel_calls import Call
from ringloom.planner.masks import Full
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.runtimes.calibration.benches import Bench, Sample, bench
from ringloom.simulator.costs.kernels import Kernels
from ringloom.simulator.hardware import Constant, Hardware, hardware, load
from ringloom.simulator.hardware.measured import (
    Kernel,
    Timed,
    as_toml,
    fit_curve,
    fit_kernel,
    fit_link,
    measured_hardware,
    positive,
    robust,
)
from ringloom.simulator.hardware.schema import OPTIONAL, UNITS
from ringloom.simulator.prediction import simulate

torch = pytest.importorskip("torch")
SEVERAL = st.lists(st.integers(64, 2**26), min_size=4, max_size=12, unique=True)


@given(st.floats(1e-7, 1e-3), st.floats(1e8, 1e12), SEVERAL)
def test_a_link_is_found_from_its_times(alpha: float, bandwidth: float, sizes: list[int]) -> None:
    fit = fit_link(sizes, [alpha + n / bandwidth for n in sizes])
    assert fit.mean_error < 1e-6
    if alpha > 1e-3 * max(sizes) / bandwidth and min(sizes) / bandwidth < 0.1 * alpha:
        assert fit.constants["alpha"] == pytest.approx(alpha, rel=1e-4)


@given(st.floats(1, 1e3), st.floats(1, 4000), SEVERAL)
def test_a_curve_is_found_from_its_rates(tmax: float, half: float, sizes: list[int]) -> None:
    fit = fit_curve(sizes, [tmax * s / (s + half) for s in sizes])
    assert fit.worst_error < 1e-4


def test_merges_on_gpus_take_far_longer_than_their_launches() -> None:
    gpu: Any = SimpleNamespace(kind="cuda", dtype="bfloat16")
    fastest, launches = 8e12, 5 * 2e-6  # bytes/s of a memory, seconds of the kernels of a merge
    assert calibrating._merge_bytes(gpu) / fastest > 4 * launches


def test_the_published_curve_of_a_kernel_is_found() -> None:
    """FlashAttention-3, forward, H100, d 128, full: 669 TF S / (S + 209) within 2.9%."""
    sizes, rates = (512, 1024, 2048, 4096, 8192, 16384), (467, 565, 625, 638, 646, 648)
    fit = fit_curve(sizes, rates)
    assert fit.constants["tmax"] == pytest.approx(669, abs=1)
    assert fit.constants["s_half"] == pytest.approx(209, abs=1)
    assert fit.worst_error == pytest.approx(0.029, abs=1e-3)


@pytest.mark.parametrize(
    ("sizes", "times", "said"),
    [
        ([1.0], [1.0], "need two rows"),
        ([4.0, 4.0], [1.0, 2.0], "need two rows of different size"),
        ([1.0, 2.0], [1.0, 0.0], "numbers from 1e-30"),
        ([1.0, 2.0], [1.0, math.inf], "to 1e.30"),
        ([1.0, 1000.0], [1.0, 1e-6], "no bandwidth fits"),
    ],
)
def test_rows_that_tell_nothing_are_refused(
    sizes: list[float], times: list[float], said: str
) -> None:
    with pytest.raises(RingloomError, match=said):
        fit_link(sizes, times)


def test_constants_are_never_negative() -> None:
    fit = positive(np.array([[1.0, 10.0], [1.0, 20.0], [1.0, 30.0]]), np.array([1.0, 3.0, 5.0]))
    assert (fit >= 0).all()
    assert fit[0] == 0


def test_a_disturbed_row_hardly_matters() -> None:
    columns = np.stack([np.ones(9), np.arange(1.0, 10)], axis=1)
    values = columns @ [2.0, 3.0]
    values[4] *= 5
    np.testing.assert_allclose(robust(columns, values), [2, 3], rtol=0.02)


# ---- kernels, from the times that known ones would take

BANDS = {"full": False, "causal": True, "masked": None}
SHAPES = ((64, 64), (256, 1024), (1024, 256), (1024, 64), (64, 1024), (2048, 2048), (700, 300))


def timed(machine: Hardware, pass_: Pass) -> list[Timed]:
    """The calls of kernels whose constants are known."""
    calls = [(q, kv, "full") for q, kv in SHAPES] + [(300, 500, "masked"), (64, 700, "masked")]
    calls += [(n, n, "causal") for n in (100, 500, 1024, 1500, 2048)]
    rows = []
    for d in (32, 64, 128):
        work = Workload(seq=4096, heads=4, head_dim=d, dtype="float32")
        for q, kv, kind in calls:
            call = Call(range(q), range(kv), BANDS[kind])
            seconds = Kernels(machine, work, pass_).seconds(call, 4)
            rows.append(Timed(pass_, q, kv, kind, 4, d, "float32", seconds))
    return rows


KNOWN = {
    "attention.tile_q": 1,
    "attention.tile_kv": 1,
    "attention.forward": 0.6,
    "attention.backward": 0.5,
    "attention.traffic": 0.4,
    "attention.backward_traffic": 0.9,
    "attention.launch": 2e-5,
    "attention.backward_launch": 5e-5,
    "attention.head_half": 24,
    "attention.backward_head_half": 8,
    "attention.causal": 1.1,
    "attention.mask": 3e-9,
    "attention.skip_q": 64,  # as any that divides skip_kv: the keys then decide
    "attention.skip_kv": 512,
}
PEAKS = {"bfloat16": 4e11, "float16": 1e11, "tf32": 1.5e11, "float32": 1.5e11, "float64": 7e10}
RATES = {"memory.bandwidth": 1e10, "attention.merge": 1.7, "intra.bandwidth": 2e9}
RATES |= {"memory.capacity": 1e10, "node.ranks": 2, "intra.alpha": 1e-4}
RATES |= {f"peak.{kind}": value for kind, value in PEAKS.items()}
OTHERS = {key: Constant(value, "measured here", True) for key, value in RATES.items()}
OTHERS |= {
    f"inter.{key}": Constant(RATES[f"intra.{key}"], "carried over", False)
    for key in ("alpha", "bandwidth")
}


def measured(dtype: str, kernels: dict[Pass, Kernel]) -> Hardware:
    return measured_hardware("here", OTHERS, "measured here", dtype, kernels, (1, 1))


@pytest.fixture(scope="module")
def machine() -> Hardware:
    peaks = {f"peak.{kind}": value for kind, value in PEAKS.items()}
    smooth = {"attention.blocks": 0, "attention.host": 0, "attention.narrow_tile_q": 1}
    memory = {"memory.bandwidth": RATES["memory.bandwidth"]}
    known = hardware("h100").changed({**KNOWN, **peaks, **smooth, **memory})
    passes: tuple[Pass, Pass] = "forward", "backward"
    calls = [call for pass_ in passes for call in timed(known, pass_)]
    return measured("float32", {p: fit_kernel(calls, p) for p in passes})


@pytest.mark.parametrize("key", KNOWN)
def test_the_constants_of_kernels_are_found_from_their_times(machine: Hardware, key: str) -> None:
    assert machine[key] == pytest.approx(KNOWN[key], rel=1e-3, abs=1e-12)


def test_kernels_that_are_given_masks_do_not_know_windows(machine: Hardware) -> None:
    calls = timed(machine.changed({"attention.mask": 0}), "forward")
    assert 0 < fit_kernel(calls, "forward").constants["mask"] < 1e-12
    unmasked = [call for call in calls if call.kind != "masked"]
    assert fit_kernel(unmasked, "forward").constants["mask"] == 0


def test_what_was_measured_is_marked_and_says_where(machine: Hardware) -> None:
    assert UNITS.keys() <= machine.constants.keys() <= UNITS.keys() | OPTIONAL.keys()
    for key, constant in machine.constants.items():
        assert constant.calibrated == (not key.startswith("inter"))
        assert len(constant.source) > 3


def test_a_machine_without_a_second_rank_has_an_uncalibrated_link() -> None:
    for messages in ([(1000, 1e-5), (1000000, 1e-3)], []):
        constants = dict(links(messages, "by a pipe", 1e10, "measured here"))
        near, far = constants["intra.bandwidth"], constants["inter.bandwidth"]
        assert near.calibrated is bool(messages)
        assert not far.calibrated
        assert far.value == near.value


def test_peaks_that_were_not_timed_are_uncalibrated() -> None:
    constants = dict(peaks(Bench(), 1e12, "measured here"))
    assert constants["peak.float32"].calibrated
    assert not constants["peak.float64"].calibrated


def test_a_measured_machine_reads_back_from_its_file(machine: Hardware, tmp_path: Path) -> None:
    strange = replace(machine, name='a "chip"\\ of mine')
    path = tmp_path / "mine.toml"
    path.write_text(as_toml(strange, "two\nlines"))
    assert load(path) == strange
    assert path.read_text().startswith("# two\n# lines\n")
    assert path.read_text().count("  # bytes/s, one way\n") == 2
    work = Workload(seq=4096, heads=4, mask=Full(), dtype="float32")
    assert simulate(plan("zigzag", work, 4), path).makespan > 0


def test_too_few_calls_are_refused(machine: Hardware) -> None:
    with pytest.raises(RingloomError, match="3 timed calls are too few to fit forward kernels"):
        fit_kernel(timed(machine, "forward")[:3], "forward")
    with pytest.raises(RingloomError, match="backward"):
        fit_kernel(timed(machine, "forward"), "backward")


# ---- this machine


@dataclass
class Clockwork:
    """A bench on which time passes as the constants of some hardware say."""

    machine: Hardware
    kind: str = "cpu"
    name: str = "clockwork"
    dtype: str = "float32"
    kinds: tuple[str, ...] = ("full", "causal", "masked")
    libraries: str = "none"
    ranks: int = 2
    capacity: float = 1e10

    def prepare(self, sample: Sample, dtype: str) -> object:
        work = Workload(seq=4096, heads=sample.heads, head_dim=sample.head_dim, dtype=dtype)
        pass_: Pass = "backward" if sample.pass_ == "backward" else "forward"
        call = Call(range(sample.rows), range(sample.columns), BANDS[sample.kind])
        return Tick(Kernels(self.machine, work, pass_).seconds(call, sample.heads))

    def merging(self, rows: int, heads: int, head_dim: int) -> object:
        return Tick(1.8 * rows * heads * (12 * head_dim + 12) / 1e10)

    def copying(self, size: int) -> object:
        return Tick(2 * size / 1e10)

    def multiplying(self, size: int, dtype: str) -> object:
        return Tick(2 * size**3 / self.machine.peak(dtype))

    def seconds(self, run: "Tick", times: int) -> float:
        return run.took * times


@dataclass
class Tick:
    took: float

    def __call__(self) -> None:
        """Nothing needs to be done for time to pass here."""


@pytest.fixture
def clockwork(machine: Hardware, monkeypatch: pytest.MonkeyPatch) -> Clockwork:
    made = Clockwork(machine)
    monkeypatch.setattr(calibrating, "bench", lambda kind: made)
    monkeypatch.setattr(
        "ringloom.runtimes.calibration.links.between_processes",
        lambda: [(n, 1e-4 + n / 2e9) for n in (4096, 65536, 2**20, 2**24)],
    )
    return made


def test_calibrating_finds_the_constants_that_the_clock_obeys(clockwork: Clockwork) -> None:
    told = calibrate().hardware
    for key in (*KNOWN, "intra.alpha", "intra.bandwidth", "memory.bandwidth", "attention.merge"):
        expected = 1.8 if key == "attention.merge" else clockwork.machine[key]
        assert told[key] == pytest.approx(expected, rel=0.02, abs=1e-12), key


def test_the_command_writes_a_file_that_predicts(
    clockwork: Clockwork, tmp_path: Path, ringloom: CommandLine
) -> None:
    path = tmp_path / "here.toml"
    document = ringloom.json("calibrate", "-o", str(path), "--quick")
    assert document["output"] == str(path)
    assert document["median_error"]["forward"] < 1e-6
    assert document["constants"] == {k: c.value for k, c in load(path).constants.items()}
    work = ["--ranks", "2", "--seq", "4096", "--dtype", "float32"]
    ringloom("simulate", "ring", *work, "--hardware", str(path), "--json")


def test_a_device_that_is_not_there_is_refused(
    tmp_path: Path, ringloom: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said = ringloom.refused("calibrate", "-o", str(tmp_path / "x.toml"), "--device", "cpu")
    assert "cpu is not available here: choose one of numpy" in said


def few(on: object) -> Iterable[Sample]:
    every = samples(on)  # type: ignore[arg-type]
    return [s for s in every if s.rows * s.columns <= 2**16 or s.rows == s.columns == 512]


@pytest.mark.parametrize("kind", ["cpu", "numpy"])
def test_this_machine_is_measured(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small calls only, once each: that all parts work, not that the numbers are good."""
    monkeypatch.setattr(calibrating, "samples", few)
    monkeypatch.setattr(calibrating, "ROUNDS", {"cpu": (1, 1), "numpy": (1, 1)})
    monkeypatch.setattr(calibrating, "COPY_BYTES", 1 << 22)
    monkeypatch.setattr("ringloom.runtimes.calibration.links.between_processes", list)
    told = calibrate(kind, quick=True)
    assert 1e8 < told.kernels["forward"].rate < 1e14
    assert 1e8 < told.hardware["memory.bandwidth"] < 1e13
    assert not told.hardware.constants["intra.alpha"].calibrated


def test_two_processes_exchange_messages() -> None:
    from ringloom.runtimes.calibration.links import SIZES, between_processes

    rows = between_processes()
    assert [n for n, _ in rows] == [*SIZES]
    assert all(0 < seconds < 10 for _, seconds in rows)


def test_every_kind_of_call_runs_in_every_pass() -> None:
    for on in (bench("cpu"), Bench()):
        runs = [
            on.prepare(Sample(pass_, 32, 32, kind, 4, 16, kv_heads), "float32")
            for pass_ in ("forward", "backward")
            for kind in on.kinds
            for kv_heads in ((0, 2) if on.kind == "cpu" else (0,))
        ]
        assert all(seconds > 0 for seconds in medians(on, runs, 1))
        half = len(runs) // 2
        assert all(not gradients(run()) for run in runs[:half])
        assert all(gradients(run()) for run in runs[half:])


def test_kernels_are_timed_as_programs_call_them() -> None:
    """On a CPU they take 16-bit inputs as float32, so they are no faster than those of float32."""
    out, _ = bench("cpu").prepare(Sample("forward", 32, 32, "full", 4, 16), "bfloat16")()  # type: ignore[misc]
    assert out.dtype == torch.float32


def gradients(results: Any) -> bool:
    """True for what a backward pass gives: three arrays of 32 tokens and 16 dimensions."""
    return isinstance(results, tuple) and [x.shape[-2:] for x in results] == [(32, 16)] * 3


# ---- ringloom fit


def rows_in(tmp_path: Path, text: str) -> str:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    return str(path)


def test_fit_tells_a_link_from_bytes_and_seconds(tmp_path: Path, ringloom: CommandLine) -> None:
    rows = "\n".join(f"{n},{1e-5 + n / 1e11},x" for n in (10**3, 10**5, 10**7))
    document = ringloom.json("fit", rows_in(tmp_path, f"Bytes, seconds,note\n{rows}\n"))
    assert document["form"] == "alpha-beta"
    assert document["alpha"] == pytest.approx(1e-5)
    assert document["bandwidth"] == pytest.approx(1e11)
    assert document["worst_error"] < 1e-6
    assert [row["bytes"] for row in document["rows"]] == [1e3, 1e5, 1e7]


def test_fit_tells_a_curve_from_sizes_and_rates(tmp_path: Path, ringloom: CommandLine) -> None:
    rows = "\n".join(f"{600 * s / (s + 200)},{s}" for s in (512, 2048, 8192))
    document = ringloom.json("fit", rows_in(tmp_path, f"tflops,size\n{rows}\n"))
    assert (document["form"], round(document["tmax"]), round(document["s_half"])) == (
        *("curve", 600, 200),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no rows"),
        ("a,tflops\n1,2\n", "the first line must contain bytes,seconds or size,tflops"),
        ("a,b\n1,2\n", "not 'a,b'"),
        ("bytes,seconds\n1,x\n", "row 1: seconds must be a positive number, not 'x'"),
        ("bytes,seconds\n1\n2\n", "row 1: seconds must be a positive number, not ''"),
        ("bytes,seconds\n1,1\n", "two constants need two rows"),
        ("bytes,seconds\n1,1e-320\n2,1e-320\n", "numbers from 1e-30 to 1e+30"),
        (
            "bytes,seconds,Seconds \n1,2,3\n2,3,4\n",
            "cannot be read: two columns are named 'seconds'",
        ),
        ("bytes,seconds\n1,1\n2,1,5\n", "row 2 has more cells than the header (2)"),
        ("size,tflops\n1,1\n2,-1\n", "row 2: tflops must be a positive number, not '-1'"),
    ],
)
def test_fit_says_in_one_line_what_is_wrong_with_a_file(
    text: str, said: str, tmp_path: Path, ringloom: CommandLine
) -> None:
    assert said in ringloom.refused("fit", rows_in(tmp_path, text), "--json")
