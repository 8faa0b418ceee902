"""Traces as HolisticTraceAnalysis reads them: a file per rank."""

from pathlib import Path

from ringloom.simulator.chrome_trace import save_trace, trace
from ringloom.simulator.prediction import Prediction


def save_ranks(run: Prediction, folder: str | Path, *, scale: float = 1.0) -> list[Path]:
    """Write one file per rank in whole microseconds, as HolisticTraceAnalysis wants them."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    files = []
    for rank in range(run.ranks):
        document = trace(run, scale=scale, whole=True, ranks=[rank])
        document = {"schemaVersion": 1, "distributedInfo": {"rank": rank}} | document
        files.append(save_trace(document, Path(folder) / f"rank-{rank}.json.gz"))
    return files
