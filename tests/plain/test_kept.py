"""Programs that `rl.compile` keeps: nobody else plants one, and no link leads out of the cache."""

import os
from pathlib import Path

import pytest

import ringloom as rl
from ringloom.planner.errors import RingloomError
from ringloom.runtimes.emitted import load
from ringloom.runtimes.kept import keep

SOURCE = "x = 1\n"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_planted_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    folder, other = tmp_path / "ringloom", tmp_path / "other.py"
    kept = Path(str(load(SOURCE, folder).__file__))
    for content in (b"planted", SOURCE.encode()):
        other.write_bytes(content)
        kept.unlink()
        kept.symlink_to(other)
        keep(SOURCE.encode(), kept)
        assert not kept.is_symlink()
        assert (kept.read_text(), other.read_bytes()) == (SOURCE, content)
    assert names(folder) == [kept.name]


@pytest.mark.parametrize("planted", ["pipe", "dangling", "changed", "writable"])
def test_whatever_is_planted_gives_way_to_a_file_of_its_own(planted: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    match planted:
        case "pipe":
            os.mkfifo(path)
        case "dangling":
            path.symlink_to(tmp_path / "nothing")
        case "changed":
            path.write_text("x = 2\n")
        case _:
            path.write_text(SOURCE)
            path.chmod(0o666)
    keep(SOURCE.encode(), path)
    assert path.read_text() == SOURCE
    assert path.lstat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == ["program.py"]


def test_what_is_kept_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    keep(SOURCE.encode(), path)
    before = path.stat()
    keep(SOURCE.encode(), path)
    assert path.stat() == before


def test_others_cannot_write_to_the_folder_of_programs(tmp_path: Path) -> None:
    folder = tmp_path / "ringloom"
    folder.mkdir()
    folder.chmod(0o777)
    keep(SOURCE.encode(), folder / "program.py")
    assert folder.stat().st_mode & 0o777 == 0o755
    keep(SOURCE.encode(), tmp_path / "new" / "program.py")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_is_a_link_or_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "ringloom").symlink_to(elsewhere)
    plan = rl.plan("ring", rl.Workload(seq=8, heads=2), 2, pass_="both")
    with pytest.raises(RingloomError, match="it is a link; set XDG_CACHE_HOME"):
        rl.compile(plan, "torch")
    assert names(elsewhere) == []
    (tmp_path / "ringloom").unlink()
    (tmp_path / "ringloom").mkdir()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(RingloomError, match="it belongs to another user; set XDG_CACHE_HOME"):
        rl.compile(plan, "torch")
