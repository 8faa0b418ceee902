"""Valid documents of every reader, which cases begin with."""

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from ringloom.planner.files import dumps
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.simulator.chrome_trace import trace
from ringloom.simulator.hardware import hardware
from ringloom.simulator.hardware.read import PRESETS
from ringloom.simulator.prediction import simulate

DATA = Path(__file__).parents[2] / "ringloom" / "reproduce" / "data"
SMALL = ["--ranks", "4", "--seq", "256", "--heads", "4", "--head-dim", "16"]


@cache
def plans() -> list[Any]:
    """Plans of both passes, of several masks, one with columns as runs."""
    work = Workload(seq=12, heads=2, head_dim=2, dtype="float64")
    chunks = Workload(seq=12, kv_seq=16, heads=4, kv_heads=2, head_dim=2, mask="causal & chunks:4")
    packed = Workload(seq=16, heads=2, head_dim=2, mask="documents:4,12", sinks=True, v_head_dim=3)
    made = [
        plan("ring", work, 3),
        plan("zigzag", work, 2, pass_="both"),
        plan("usp:ulysses=2", chunks, 4),
        plan("burst", packed, 2, pass_="backward"),
        plan("allgather:keep=1", work, 2, pass_="both"),
        plan("ring", Workload(seq=40, heads=1, head_dim=2), 20),
    ]
    return [json.loads(dumps(each)) for each in made]


@cache
def traces() -> list[Any]:
    predicted = simulate(plan("zigzag", Workload(seq=8, heads=2), 2), hardware("h100"), record=True)
    return [json.loads(json.dumps(trace(predicted)))]


@cache
def machines() -> list[Any]:
    names = ("a100-nvlink", "tpu-v4")
    return [tomllib.loads((PRESETS / f"{name}.toml").read_text()) for name in names]


SCENARIOS = [
    {"overlap": False, "speeds": {"3": 0.5}, "links": {"6-7": 0.1, "0-1": "cut"}},
    {"late": True, "share": 0.1, "chunk": 4096, "placement": [0, 2, 1, 3], "launch": 1e-6},
    {"topology": "nodes:nics=2", "buffers": 2, "speeds": [1.0, 0.5, 1, 1]},
    {"topology": "torus:2x2", "buffers": "plan"},
]
TOPOLOGIES = [
    {"links": [[0, 1, 1e9, 1e-6], [1, 2, 2e9], [2, 3, 1e9, 0], [3, 0, 1e9]]},
    {"links": [[0, "s0", 1e9], [1, "s0", 1e9], [2, "s0", 1e9], ["s0", 3, 1e9, 2e-6]]},
]
MASKS = [
    *("causal", "full", "window:4", "window:3,inf", "prefix:2", "global:1", "keys:5", "chunks:3"),
    *(
        "block-causal:2",
        "documents:5,3",
        "documents:5,3/4,5",
        "varlen:5,3/4,5",
        "varlen:4,4/5,4/2,1",
    ),
    *(
        "blocks:4:01/11",
        "tree:4,2,2/-,0,0",
        "slices:0,4,0,4,causal/4,8,2,6,bi",
        "slices:-1,8,0,8,full",
    ),
    *("causal & (window:3 | global:1)", "documents:8 & causal | prefix:2"),
]
FILES = [
    ("documents", [5, 3]),
    ("blocks", {"size": 4, "grid": [[1, 0], [True, 1]]}),
    ("slices", [[0, 4, 0, 4, "causal"], [4, 8, 2, 6, "bi"]]),
    ("tree", {"lengths": [4, 2, 2], "parents": [None, 0, 0]}),
]
GRIDS = [
    {
        "ranks": 4,
        "seq": ["1k", 2048],
        "mask": ["causal", "window:64"],
        "hardware": ["h100", "a100-nvlink"],
        "schedule": ["ring", "zigzag", "usp:ulysses=2"],
        "scenario": {"ordinary": {}, "straggler": {"speeds": {"3": 0.5}}},
    },
    {
        "ranks": [2, 4],
        "seq": 512,
        "heads": 4,
        "hardware": "h100",
        "schedule": "ring",
        "pass": "both",
    },
]
SCHEDULES = ["ring", "striped:grain=16", "usp:ulysses=2:ring=4", "burst:layout=zigzag"]
LENGTHS = ["4096", "256k", "1M", "0"]
TABLES = [
    [row.split(",") for row in (DATA / "striped_speedups.csv").read_text().splitlines()[:4]],
    [row.split(",") for row in (DATA / "measured.csv").read_text().splitlines()[:4]],
    [["bytes", "seconds"], ["1000", "1e-5"], ["2000", "1.5e-5"], ["4000", "2.5e-5"]],
    [["size", "tflops"], ["128", "10"], ["256", "20"], ["1024", "50"]],
]
COMMANDS = [
    ["plan", "zigzag", *SMALL, "-o", "plan.json"],
    ["plan", "plan.json"],
    ["compare", *SMALL, "--hardware", "h100", "--schedules", "ring,zigzag"],
    ["simulate", "burst", *SMALL, "--straggler", "1=0.5", "--slow-link", "0-1=0.5"],
    ["simulate", "ring", *SMALL, "--topology", "nodes:nics=2", "--recv-buffers", "2"],
    [
        "simulate",
        "ring",
        *SMALL,
        "--placement",
        "0,2,1,3",
        "--launch-latency",
        "1e-6",
        "--no-overlap",
    ],
    ["simulate", "plan.json", "--hardware", "h100", "--trace", "trace.json"],
    ["run", "ring", *SMALL, "--check", "--seed", "3"],
    ["emit", "torch", "ring", *SMALL, "-o", "program.py"],
    ["tables", "jax", "ring", *SMALL],
    ["schedules", "--csv"],
    ["hardware", "h100"],
    ["fit", "rows.csv"],
    ["completion", "bash"],
]
OPTIONS = [
    *("--json", "--csv", "--help", "--ranks", "--seq", "--kv-seq", "--heads", "--kv-heads"),
    *("--head-dim", "--v-head-dim", "--batch", "--mask", "--dtype", "--pass", "--trim", "--sinks"),
    *(
        "--hardware",
        "--scenario",
        "--topology",
        "--placement",
        "--recv-buffers",
        "--comm-sm-fraction",
        "--launch-latency",
    ),
    *(
        "--straggler",
        "--slow-link",
        "--memory",
        "--schedules",
        "-o",
        "--dynamic",
        "--layer",
        "--seed",
    ),
    *("--", "-", "--no-overlap", "--max-calls", "--platform", "--trace", "--check"),
]
