"""Files that go with the application that made them, and what is left of one that was killed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparknet import scratch
from sparknet.errors import SessionError
from sparknet.scratch import (
    local_directories,
    local_path,
    own_folder,
    remove_executors_orphans,
    remove_files,
    remove_orphans,
    written_whole,
)

MAKE = "import sys; from pathlib import Path; from sparknet.scratch import own_folder; "


def put(name: str) -> None:
    """A file of this process's."""
    with written_whole(local_path(name)) as file:
        file.write(b"some")


@contextmanager
def another_process(folder: Path) -> Iterator[Path]:
    """A folder of a process that runs; it is killed at the end."""
    code = MAKE + "print(own_folder(Path(sys.argv[1])), flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", code, str(folder)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


def test_what_a_killed_process_left_goes_and_all_else_stays(tmp_path: Path) -> None:
    own = own_folder(tmp_path)
    others = [tmp_path / name for name in ("sparknet-", "sparknet-run", "sparknet-0123abcd-0123abcd-1-2", "blockmgr")]
    for other in others:
        other.mkdir()
    with another_process(tmp_path) as folder:
        (folder / "block").write_bytes(b"0" * 1000)
        remove_orphans(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([own, folder, *others])
    remove_orphans(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([own, *others])


def test_the_same_process_id_later_is_another_process(tmp_path: Path) -> None:
    """An ID is given out again: not the ID alone tells whether an owner is gone."""
    head, _, started = scratch._owner_name(os.getpid()).rpartition("-")
    earlier = tmp_path / f"{head}-{int(started) - 1}"
    earlier.mkdir()
    own = tmp_path / f"{head}-{started}-x"
    own.mkdir()
    remove_orphans(tmp_path)
    assert [*tmp_path.iterdir()] == [own]


def test_what_was_there_before_the_machine_started_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_boot", lambda: "0123abcd")
    own_folder(tmp_path)
    monkeypatch.undo()
    remove_orphans(tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_another_machine_s_on_a_shared_disk_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_place", lambda: "0123abcd")
    folders = [own_folder(tmp_path)]
    monkeypatch.setattr(scratch, "_boot", lambda: "0123abcd")
    folders.append(own_folder(tmp_path))
    monkeypatch.undo()
    remove_orphans(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(folders)


def test_where_the_system_does_not_tell_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_fields", lambda process: None)
    monkeypatch.setattr(scratch, "_boot", lambda: "0" * 8)
    own = own_folder(tmp_path)
    remove_orphans(tmp_path)
    assert own.is_dir()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(b"")
    with another_process(tmp_path) as folder:
        pass
    folder.rmdir()
    folder.symlink_to(tmp_path / "precious")
    remove_orphans(tmp_path)
    assert (tmp_path / "precious" / "file").exists()


@pytest.mark.parametrize("parents", ["blockmgr-{}", "spark-{}/executor-{}/blockmgr-{}"])
def test_executors_find_each_other_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parents: str) -> None:
    """Of a local master, and of a standalone one's workers."""
    live, dead, own = (tmp_path / parents.replace("{}", name) for name in ("live", "dead", "own"))
    for folder in (live, dead, own):
        folder.mkdir(parents=True)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(own))
    put("block")
    with another_process(live) as of_live:
        with another_process(dead) as of_dead:
            (of_dead / "block").touch()
            (dead / "shuffle").touch()  # Spark's own, which a shuffle service may still give out
        remove_executors_orphans()
        assert of_live.is_dir()
        assert [path.name for path in dead.iterdir()] == ["shuffle"]
        assert local_path("block").exists()


def test_files_lie_on_all_disks_and_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/a,{tmp_path}/b")
    paths = [local_path(f"set-{i}") for i in range(20)]
    assert {path.parent.parent for path in paths} == {tmp_path / "a", tmp_path / "b"}
    assert paths == [local_path(f"set-{i}") for i in range(20)]
    for name in ("other", *(path.name for path in paths)):
        put(name)
    remove_files("set-")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["other"]


def test_where_spark_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", "/tmp/x")
    assert local_directories({}) == [Path("/tmp/x")]
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.local.dir /no\nspark.local.dir   /a,/b\nspark.local.dirs /c\n"
    )
    assert local_directories({}) == [Path("/a"), Path("/b")]
    assert local_directories({"spark.local.dir": "/d, /e"}) == [Path("/d"), Path("/e")]
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/f")
    assert local_directories({"spark.local.dir": "/d"}) == [Path("/f")]


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with written_whole(path) as file:
        file.write(b"half")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"half"
    with pytest.raises(KeyError), written_whole(path) as file:
        file.write(b"other")
        raise KeyError
    assert path.read_bytes() == b"half"
    assert [*tmp_path.iterdir()] == [path]


def test_a_disk_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(SessionError, match=f"^{tmp_path}/x: cannot be written: No space left on device; "),
        written_whole(tmp_path / "x"),
    ):
        raise OSError(28, "No space left on device")
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "file"))
    with (
        pytest.raises(SessionError, match=f"^{tmp_path}/file/sparknet-.*/x: cannot be written: Not a directory"),
        written_whole(local_path("x")),
    ):
        pass
