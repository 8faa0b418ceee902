"""Pages of the documentation show what their commands print, and a picture of it."""

import re
from pathlib import Path

import outputs
import pytest
from outputs import with_outputs

PAGE = """# Page

```toml
# grid.toml
ranks = 2
seq = 64
hardware = "h100"
schedule = ["ring", "zigzag"]
```

```python
from pathlib import Path
Path("lengths.txt").write_text("10 6")
```

```console
$ ringloom simulate ring --ranks 2 --seq 16 --mask documents@lengths.txt
```

```console
$ ringloom schedules
this is shown already
```

```console
$ ringloom emit torch zigzag --ranks 2 --seq 16 -o program.py
```

```console
$ ringloom sweep grid.toml -o sweep
```

```text
as before
```

```console
$ python program.py
```
"""


def test_a_page_shows_what_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "PICTURES", tmp_path / "pictures")
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    shown = with_outputs(page)
    assert "```text\nring: forward of 16 tokens, documents:" in shown
    assert "![Timeline of the ranks](pictures/page-17.svg)" in shown
    drawn = (tmp_path / "pictures/page-17.svg").read_text()
    assert drawn.lstrip().startswith("<?xml")
    assert f"fill: {outputs.INK}" in drawn  # on any page, be it light or dark
    assert "fill: #ffffff" not in drawn
    assert re.search(r"```text\nprogram.py: \d+ lines; .*\n```\n\n!\[Tiles .*-26.svg", shown)
    assert re.search(r"```text\nas before\n```\n\n!\[Performance profile .*-30.svg", shown)
    assert shown.count("```text") == 3
    kept = [line for line in PAGE.splitlines() if line not in shown.splitlines()]
    assert kept == []


def test_python_that_needs_what_is_not_installed_is_left_out(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    absent = "```python\nfrom nowhere.at import thing\nraise ValueError\n```\n"
    absent += "\n```python\nother = thing()\n```\n\n```python\nother.more()\n```\n"
    wrote = '```python\nfrom pathlib import Path\nPath("n.txt").write_text("10 6")\n```\n'
    reads = "$ ringloom run ring --ranks 2 --seq 16 --heads 1 --head-dim 8 --mask documents@n.txt"
    page.write_text(f"{absent}\n{wrote}\n```console\n{reads}\n```\n")
    assert "documents:10,6" in with_outputs(page)


def test_a_command_that_fails_fails_the_build(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ ringloom plan spiral --ranks 2 --seq 16\n```\n")
    with pytest.raises(AssertionError, match="ringloom plan spiral"):
        with_outputs(page)
