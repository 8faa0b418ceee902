"""Fits constants to measurements by least squares on relative errors.

    alpha-beta    seconds = alpha + bytes / bandwidth
    curve         TF(S)   = Tmax S / (S + S_half)
    kernels       seconds = launch + pairs x seconds per pair + bytes x seconds per byte

All fitted constants are times, so none is negative: the fit tries all subsets of constants and uses
the best one without negative values. Constants of kernels are fitted to all timed calls of a pass
together, for each size of skipped tiles and each head_dim at which scores cost as much as products;
the values with the least error are used.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import RingloomError
from ringloom.planner.ir import Pass
from ringloom.planner.workload import Workload
from ringloom.simulator.costs.kernels import causal_pairs, flop_per_pair, traffic_per_token
from ringloom.simulator.hardware import Constant, Hardware
from ringloom.simulator.hardware.schema import LARGEST, REFERENCE_DIM, SMALLEST, unit_of

Floats = NDArray[np.float64]
ROUNDS = 20  # of reweighting
FLOOR = 0.01  # relative error below which the weight of a row does not grow
Tile = tuple[int, int]
SKIPS: tuple[Tile, ...] = tuple(product((64, 128, 256, 512), (64, 128, 256, 512)))
HALVES = (0, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True, eq=False)
class Fit:
    """Fitted constants by name, and their prediction of each measured value."""

    form: str
    constants: dict[str, float]
    measured: Floats
    fitted: Floats

    @property
    def errors(self) -> Floats:
        """The relative error of each row."""
        errors: Floats = self.fitted / self.measured - 1
        return errors

    @property
    def mean_error(self) -> float:
        """The mean absolute relative error."""
        return float(np.abs(self.errors).mean())

    @property
    def worst_error(self) -> float:
        """The largest absolute relative error."""
        return float(np.abs(self.errors).max())


def positive(columns: Floats, values: Floats, weights: Floats | None = None) -> Floats:
    """Returns x >= 0 with least sum(weights (columns @ x / values - 1)^2); columns: [rows, n]."""
    rows, count = columns.shape
    root = np.ones(rows) if weights is None else np.sqrt(weights)
    scaled, target = columns / values[:, None] * root[:, None], root
    size = np.linalg.norm(scaled, axis=0)
    scaled = scaled / np.where(size > 0, size, 1.0)
    best, least = np.zeros(count), float(target @ target)
    for width in range(1, count + 1):
        for chosen in combinations(range(count), width):
            part = scaled[:, chosen]
            x = np.linalg.lstsq(part, target, rcond=None)[0]
            misfit = part @ x - target
            if (x >= 0).all() and misfit @ misfit < least:
                least, best = float(misfit @ misfit), np.zeros(count)
                best[list(chosen)] = x
    solution: Floats = best / np.where(size > 0, size, 1.0)
    return solution


def robust(columns: Floats, values: Floats) -> Floats:
    """Returns x >= 0 with the least sum of absolute relative errors, so outliers matter little."""
    x = positive(columns, values)
    for _ in range(ROUNDS):
        error = np.abs(columns @ x / values - 1)
        x = positive(columns, values, 1 / np.maximum(error, FLOOR))
    return x


def fit_link(size: Sequence[float], seconds: Sequence[float]) -> Fit:
    """Fits alpha [s] and bandwidth [bytes/s] to the times of messages."""
    n, t = _rows(size, seconds)
    alpha, beta = positive(np.stack([np.ones_like(n), n], axis=1), t)
    if not beta:
        raise RingloomError("the times do not grow with the bytes: no bandwidth fits them")
    constants = {"alpha": float(alpha), "bandwidth": float(1 / beta)}
    return Fit("alpha-beta", constants, t, alpha + beta * n)


def fit_curve(size: Sequence[float], rate: Sequence[float]) -> Fit:
    """Fits Tmax, in the unit of `rate`, and S_half, in that of `size`."""
    s, rates = _rows(size, rate)
    columns = np.stack([np.ones_like(s), 1 / s], axis=1)
    slow = 1 / rates
    for _ in range(ROUNDS):  # 1 / rate is linear; weights turn its errors into errors of rates
        least, half = positive(columns, 1 / rates, (1 / rates / slow) ** 2)
        slow = columns @ np.array([least, half])
    if not least:
        raise RingloomError("the rates grow in step with the size: no Tmax fits them")
    constants = {"tmax": float(1 / least), "s_half": float(half / least)}
    return Fit("curve", constants, rates, 1 / slow)


def _rows(first: Sequence[float], second: Sequence[float]) -> tuple[Floats, Floats]:
    a, b = np.array(first, float), np.array(second, float)
    if len(a) < 2 or len(np.unique(a)) < 2:
        raise RingloomError(f"two constants need two rows of different size, not {len(a)}")
    if not all((x >= SMALLEST).all() and (x <= LARGEST).all() for x in (a, b)):
        limits = f"{SMALLEST:g} to {LARGEST:g}"
        raise RingloomError(f"sizes, times and rates must be numbers from {limits}")
    return a, b


# ---- kernels, and hardware of them


@dataclass(frozen=True, slots=True)
class Timed:
    """One kernel call, and its measured seconds."""

    pass_: Pass
    rows: int
    columns: int
    kind: str  # full, causal or masked
    heads: int  # times batch rows
    head_dim: int
    dtype: str
    seconds: float


@dataclass(frozen=True)
class Kernel:
    """Constants fitted to the calls of one pass, and the relative error of each call."""

    rate: float  # flop/s at head_dim 128 on long blocks
    constants: dict[str, float]  # named as in hardware; traffic in seconds per byte
    errors: Floats

    @property
    def median_error(self) -> float:
        """The median absolute relative error of the calls."""
        return float(np.median(np.abs(self.errors)))


def fit_kernel(
    calls: Sequence[Timed],
    pass_: Pass,
    tile: Tile = (1, 1),
    skips: Sequence[Tile] = SKIPS,
) -> Kernel:
    """Fits the constants of one pass's kernels; raises RingloomError for too few calls."""
    calls = [call for call in calls if call.pass_ == pass_]
    if len(calls) < 4 or not any(call.kind == "full" for call in calls):
        raise RingloomError(f"{len(calls)} timed calls are too few to fit {pass_} kernels")
    seconds = np.array([call.seconds for call in calls])
    halves = HALVES if len({call.head_dim for call in calls}) > 1 else (0,)
    best: tuple[float, int, Tile, Floats] | None = None
    for skip in skips:
        work = _columns(calls, tile, skip)
        for half in halves:
            columns = work.copy()
            columns[:, 1:3] *= _flop(calls, pass_, half)[:, None]
            error = np.abs(columns @ positive(columns, seconds) / seconds - 1)
            if best is None or error.mean() < best[0]:
                best = float(error.mean()), half, skip, columns
    assert best is not None
    _, half, skip, columns = best
    skipped = {"skip_q": skip[0], "skip_kv": skip[1]} if skip != tile else {}
    return _kernel(pass_, {"head_half": half, **skipped}, columns, seconds)


def _flop(calls: Sequence[Timed], pass_: Pass, half: int) -> Floats:
    """Returns the flop of a pair of all heads, including the cost of scores, for each call."""
    dims = [(call.heads, call.head_dim + half) for call in calls]
    return np.array([heads * flop_per_pair(pass_, dim, dim) for heads, dim in dims])


def _traffic(call: Timed) -> float:
    """Returns the bytes that a call reads and writes, counting inputs and results once."""
    work = Workload(seq=1, heads=1, head_dim=call.head_dim, dtype=call.dtype)
    query, key = traffic_per_token(call.pass_, work)
    return call.heads * (query * call.rows + key * call.columns)


def _columns(calls: Sequence[Timed], tile: Tile, skip: Tile) -> Floats:
    """Returns 1, full pairs, causal pairs, bytes and masked pairs of each call: [calls, 5]."""
    columns = np.zeros((len(calls), 5))
    tq, tk = tile
    for row, call in zip(columns, calls, strict=True):
        height, width = -(-call.rows // tq) * tq, -(-call.columns // tk) * tk
        row[0], row[3] = 1.0, _traffic(call)
        if call.kind == "causal":
            row[2] = causal_pairs(call.rows, tile, skip)
        else:
            row[1], row[4] = height * width, height * width * (call.kind == "masked")
    return columns


def _kernel(pass_: Pass, others: Mapping[str, int], columns: Floats, seconds: Floats) -> Kernel:
    """Fits the linear constants, given all others."""
    used = columns.any(axis=0)
    x = np.zeros(columns.shape[1])
    x[used] = robust(columns[:, used], seconds)
    launch, full, causal, traffic, mask = x.tolist()
    if not full:
        raise RingloomError(f"the times of {pass_} calls do not grow with their size")
    if columns[:, 4].any():  # kernels that take a mask do not support windows
        mask = max(mask, SMALLEST)
    constants = {"launch": launch, "traffic": traffic, "mask": mask, **others}
    constants["causal"] = max(1.0, causal / full)
    rate = REFERENCE_DIM / (REFERENCE_DIM + others["head_half"]) / full
    return Kernel(rate, constants, columns @ x / seconds - 1)


def measured_hardware(
    name: str,
    others: Mapping[str, Constant],
    note: str,
    dtype: str,
    kernels: Mapping[Pass, Kernel],
    tile: Tile,
) -> Hardware:
    """Returns the hardware of fitted kernels and other measured constants.

    `note` says where and when calls with inputs of `dtype` were timed; `tile` is the tile that the
    fit assumed.
    """
    constants = dict(others)
    peak, bandwidth = others[f"peak.{dtype}"].value, others["memory.bandwidth"].value
    for pass_, kernel in kernels.items():
        prefix = "attention." if pass_ == "forward" else f"attention.{pass_}_"
        values = {f"attention.{pass_}": min(1.0, kernel.rate / peak)}
        values |= {prefix + name: value for name, value in kernel.constants.items()}
        values[prefix + "traffic"] *= bandwidth
        error = f"median error {kernel.median_error:.1%}"
        source = f"{note}; fitted to {len(kernel.errors)} calls, {error}"
        constants |= {key: Constant(value, source, True) for key, value in values.items()}
    for side, size in zip(("q", "kv"), tile, strict=True):
        constants[f"attention.tile_{side}"] = Constant(size, "tile that the fit assumed", True)
    return Hardware(name, constants)


def as_toml(hardware: Hardware, head: str = "") -> str:
    """Returns the text of a hardware file that `rl.hardware` reads as the same hardware."""
    sections = dict[str, list[str]]()
    for key, constant in hardware.constants.items():
        section, name = key.split(".")
        value = f"value = {constant.value!r}, source = {json.dumps(constant.source)}"
        flag = f"calibrated = {str(constant.calibrated).lower()}"
        if constant.range:
            flag += f", range = {list(constant.range)}"
        sections.setdefault(section, []).append(
            f"{name} = {{ {value}, {flag} }}  # {unit_of(key).name}"
        )
    lines = [*(f"# {line}" for line in head.splitlines()), f"name = {json.dumps(hardware.name)}"]
    sections["node"].insert(0, f'kind = "{hardware.node}"')
    for section, rows in sections.items():
        lines += ["", f"[{section}]", *rows]
    return "\n".join(lines) + "\n"
