"""Stores generated text under build/, by the hash of the sources."""

import os
import sys
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build/tables"
SOURCES = "planner", "simulator", "codegen", "runtimes", "ringloom", "docs", "benchmarks/results"
SUFFIXES = {".py", ".toml", ".json", ".csv"}


@cache
def digest() -> str:
    """Returns the hash of all sources, of constraints.txt and of the version of Python."""
    folders = (entry for source in SOURCES for entry in os.walk(ROOT / source))
    files = (Path(folder, name) for folder, _, names in folders for name in names)
    sources = (p for p in files if p.suffix in SUFFIXES and "generated" not in p.parts)
    total = sha256(sys.version.encode())
    for path in sorted([ROOT / "constraints.txt", *sources]):
        content = sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(ROOT)} {content}\n".encode())
    return total.hexdigest()[:16]


def load_text(name: str, lines: Callable[[], Iterable[str]], folder: Path = FOLDER) -> str:
    """Returns the lines of a page as text, from the stored file if no source has changed."""
    path = folder / f"{name}-{digest()}.md"
    if not path.exists():
        text = "\n".join(lines()) + "\n"
        folder.mkdir(parents=True, exist_ok=True)
        for outdated in folder.glob(f"{name}-*.md"):
            outdated.unlink()
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")
