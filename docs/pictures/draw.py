"""Redraws every picture:  python docs/pictures/draw.py"""

import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent


def pictures() -> dict[Path, str]:
    """Returns the text of each SVG file, drawn anew."""
    names = sorted(path.stem for path in HERE.glob("*.py") if "\ndef picture(" in path.read_text())
    return {HERE / f"{name}.svg": import_module(name).picture() for name in names}


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    for path, svg in pictures().items():
        path.write_text(svg, encoding="utf-8")
        print(path, len(svg))
