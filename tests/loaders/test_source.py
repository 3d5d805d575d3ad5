import io
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import _registry
from hypothesis import given
from hypothesis import strategies as st

from sparknet.errors import SourceError
from sparknet.loaders import source
from sparknet.loaders.source import (
    File,
    Listing,
    RangeReader,
    list_files,
    list_source,
    open_scan,
    read_range,
    read_text,
)

CONTENT = bytes(range(256)) * 4


class Server(ThreadingHTTPServer):
    """Serves one file to whoever asks for /x.tar, in the way that `behaviour` says."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.behaviour = "ranges"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/x.tar"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        body, behaviour = self.server.content, self.server.behaviour
        if behaviour.isdecimal() or not self.path.endswith("/x.tar"):
            self.send_error(int(behaviour) if behaviour.isdecimal() else 404)
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked and behaviour != "whole":
            start, end = int(asked[1]), int(asked[2]) + 1
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{min(end, len(body)) - 1}/{len(body)}")
            body = body[start : end - (behaviour == "short")]
        else:
            self.send_response(200)
        if behaviour != "whole":
            self.send_header("Accept-Ranges", "bytes")
        if behaviour == "no size":
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def content_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("source") / "content"
    path.write_bytes(CONTENT)
    return str(path)


@pytest.fixture
def reachable(tmp_path: Path) -> Iterator[Path]:
    """A folder that any user may enter, which pytest's own is not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def nobody() -> Iterator[None]:
    """Root may read everything: be somebody else meanwhile."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def write_files(folder: Path, *names: str) -> list[File]:
    """Write files of different sizes; returns what a listing must say."""
    files = []
    for size, name in enumerate(names, 1):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
        files.append(File(str(path), size))
    return sorted(files)


def test_listing_is_complete_and_sorted(tmp_path: Path) -> None:
    files = write_files(tmp_path, "b.tar", "a.tar", "sub/deep/c.tar", "train.00010.tar", "train.0001.tar", "Z.tar")
    assert list_files(str(tmp_path)) == files
    assert [Path(file.url).name for file in files] == [
        "Z.tar", "a.tar", "b.tar", "c.tar", "train.0001.tar", "train.00010.tar",
    ]  # fmt: skip


def test_listing_of_many_files_lacks_none(tmp_path: Path) -> None:
    files = write_files(tmp_path, *(f"train.{i:05d}.tar" for i in range(1500)))
    assert list_files(str(tmp_path)) == files


def test_files_by_the_ends_of_their_names(tmp_path: Path) -> None:
    files = write_files(tmp_path, "a.tar", "b.txt", "c.tar.gz", "d/e.TGZ", "tar")
    listing = list_source(f"{tmp_path}/")
    assert listing == Listing(f"{tmp_path}/", str(tmp_path), tuple(files))
    assert listing.ending(".tar") == (files[0],)
    assert listing.ending(".tar", ".tgz") == (files[0], files[3])
    assert [listing.path(file) for file in listing.files] == ["a.tar", "b.txt", "c.tar.gz", "d/e.TGZ", "tar"]


@pytest.mark.parametrize("spelling", ["{0}", "file://{0}"])
def test_a_file_that_is_named_counts_whatever_its_name(tmp_path: Path, spelling: str) -> None:
    [file] = write_files(tmp_path, "images")
    listing = list_source(spelling.format(file.url))
    assert listing.root is None
    assert listing.ending(".tar") == (file,)
    assert listing.path(file) == "images"


@pytest.mark.parametrize("spelling", ["{0}", "file://{0}", "local://{0}"])
def test_spellings_of_a_local_file_give_its_plain_path(tmp_path: Path, spelling: str) -> None:
    [file] = write_files(tmp_path, "x.tar")
    assert list_files(spelling.format(file.url)) == [file]


def test_a_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [file] = write_files(tmp_path, "x.tar")
    monkeypatch.chdir(tmp_path)
    assert list_files("x.tar") == [file]


@pytest.mark.parametrize("name", ["a b.tar", "ü.tar", "x[1].tar", "50%.tar", "a*?.tar", "#1.tar", "~x.tar"])
def test_odd_names_are_names(tmp_path: Path, name: str) -> None:
    write_files(tmp_path, "a.tar", "ab.tar", "x1.tar")
    [file] = write_files(tmp_path, name)
    assert list_files(file.url) == [file]
    assert file in list_files(str(tmp_path))
    assert read_range(file.url, 0, 1) == b"\0"


def test_links_are_followed(tmp_path: Path) -> None:
    elsewhere = write_files(tmp_path / "elsewhere", "one.tar", "two.tar")
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "file.tar").symlink_to(elsewhere[0].url)
    (folder / "folder").symlink_to(tmp_path / "elsewhere")
    assert list_files(str(folder)) == [
        File(str(folder / "file.tar"), elsewhere[0].size),
        File(str(folder / "folder/one.tar"), elsewhere[0].size),
        File(str(folder / "folder/two.tar"), elsewhere[1].size),
    ]


def test_a_link_that_leads_nowhere_is_an_error_where_it_would_count(tmp_path: Path) -> None:
    [file] = write_files(tmp_path, "a.tar")
    (tmp_path / ".#notes").symlink_to("user@host:1")
    assert list_files(str(tmp_path)) == [file]
    (tmp_path / "b.tar").symlink_to("gone.tar")
    with pytest.raises(SourceError, match=re.escape(f"{tmp_path}/b.tar: a link that leads nowhere")):
        list_files(str(tmp_path))


def test_a_folder_that_may_not_be_listed_is_an_error_not_an_empty_one(reachable: Path) -> None:
    write_files(reachable, "a.tar", "closed/b.tar")
    (reachable / "closed").chmod(0)
    with nobody(), pytest.raises(SourceError, match=f"^{reachable}: not permitted to read {reachable}/closed$"):
        list_files(str(reachable))
    (reachable / "closed").chmod(0o755)
    assert len(list_files(str(reachable))) == 2


def test_a_file_that_may_not_be_read_is_named(reachable: Path) -> None:
    [file] = write_files(reachable, "a.tar")
    Path(file.url).chmod(0)
    with nobody():
        for read in (lambda: read_range(file.url, 0, 1), lambda: open_scan(file.url), lambda: read_text(file.url)):
            with pytest.raises(SourceError, match=f"^{file.url}: not permitted to read {file.url}$"):
                read()


def test_an_empty_listing_names_the_url(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"^{tmp_path}: no file there; name a file, or a folder that holds some$"):
        list_files(str(tmp_path))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("{tmp}/none.tar", "{tmp}/none.tar: no such file or folder"),
        ("file://{tmp}/none", "file://{tmp}/none: no such file or folder"),
        ("memory://x/y.tar", "memory://x/y.tar: memory:// exists in one process only, executors cannot see it"),
        ("nosuch://x", "nosuch://x: Protocol not known: nosuch"),
        ("simplecache::memory://x", "simplecache::memory://x: chained URLs (with ::) are not read"),
        ("zip://a.tar::{tmp}/x.zip", "zip://a.tar::{tmp}/x.zip: chained URLs"),
        ("", "the URL is empty"),
        (" ", "the URL is empty"),
        ("http://127.0.0.1:9/x.tar", "http://127.0.0.1:9/x.tar: ClientConnectorError: Cannot connect to host"),
        ("ftp://127.0.0.1:9/x.tar", "ftp://127.0.0.1:9/x.tar: ConnectionRefusedError: "),
    ],
)
@pytest.mark.parametrize("act", [list_files, open_scan, read_text, partial(read_range, start=0, length=1)])
def test_what_cannot_be_opened_is_named(tmp_path: Path, url: str, message: str, act: Callable[[str], Any]) -> None:
    with pytest.raises(SourceError) as raised:
        act(url.format(tmp=tmp_path))
    assert str(raised.value).startswith(message.format(tmp=tmp_path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [("s3://bucket/x.tar", "s3fs", "s3"), ("s3a://bucket/x", "s3fs", "s3"), ("hdfs://host/x", "hdfs_native", "hdfs")],
)
def test_a_missing_client_comes_with_its_pip_line(
    monkeypatch: pytest.MonkeyPatch, url: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # what makes an import fail
    protocol = url.split(":")[0]
    monkeypatch.delitem(_registry, protocol, raising=False)
    with pytest.raises(SourceError) as raised:
        list_files(url)
    assert str(raised.value) == f"{url}: no client for {protocol}:// is installed; pip install 'sparknet[{extra}]'"


def test_a_listing_is_never_an_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Remembering(LocalFileSystem):  # type: ignore[misc]
        protocol = "remembering"

        def ls(self, path: str, detail: bool = False, **kwargs: Any) -> Any:
            if path not in self.dircache:
                self.dircache[path] = super().ls(path, detail=True, **kwargs)
            return self.dircache[path]

        def invalidate_cache(self, path: str | None = None) -> None:
            self.dircache.clear()

    monkeypatch.setitem(_registry, "remembering", Remembering)
    url = f"remembering://{tmp_path}"
    write_files(tmp_path, "a.tar")
    assert len(list_files(url)) == 1
    write_files(tmp_path, "a.tar", "b.tar")
    assert len(list_files(url)) == 2


def test_http_is_listed_and_read_by_ranges(server: Server) -> None:
    assert list_files(server.url) == [File(server.url, len(CONTENT))]
    assert read_range(server.url, 300, 77) == CONTENT[300:377]
    assert read_range(server.url, 0, len(CONTENT)) == CONTENT
    with open_scan(server.url) as stream:
        stream.seek(513)
        assert stream.read(9) == CONTENT[513:522]
        assert stream.seek(-2, io.SEEK_END) == len(CONTENT) - 2
        assert stream.read() == CONTENT[-2:]


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("whole", "the server ignores ranges (1024 bytes came of the 10 asked for)"),
        ("short", "short read at offset 5: 9 bytes came of the 10 asked for"),
        ("403", "ClientResponseError: 403"),
        ("404", "no such file or folder"),
        ("500", "ClientResponseError: 500"),
    ],
)
def test_http_gone_wrong_is_named(server: Server, behaviour: str, message: str) -> None:
    server.behaviour = behaviour
    with pytest.raises(SourceError) as raised:
        read_range(server.url, 5, 10)
    assert str(raised.value).startswith(f"{server.url}: {message}")


@pytest.mark.parametrize(("status", "message"), [("403", "ClientResponseError: 403"), ("404", "no such file")])
def test_http_that_cannot_be_listed_says_why(server: Server, status: str, message: str) -> None:
    server.behaviour = status
    with pytest.raises(SourceError) as raised:
        list_files(server.url)
    assert str(raised.value).startswith(f"{server.url}: {message}")


def test_http_without_a_size_is_refused(server: Server) -> None:
    server.behaviour = "no size"
    with pytest.raises(SourceError, match=f"^{server.url}: the server does not say the file's size"):
        list_files(server.url)


def test_http_that_fails_midway_in_a_scan_is_named(server: Server) -> None:
    with open_scan(server.url) as stream:
        server.behaviour = "500"
        with pytest.raises(SourceError, match=f"^{server.url}: ClientResponseError: 500"):
            stream.read(10)


@given(start=st.integers(0, len(CONTENT)), length=st.integers(0, len(CONTENT)))
def test_a_range_is_the_slice_or_an_error(content_file: str, start: int, length: int) -> None:
    if start + length <= len(CONTENT):
        assert read_range(content_file, start, length) == CONTENT[start : start + length]
        return
    came = len(CONTENT) - start
    with pytest.raises(SourceError) as raised:
        read_range(content_file, start, length)
    assert str(raised.value) == (
        f"{content_file}: short read at offset {start}: {came} bytes came of the {length} asked for"
    )


def test_nothing_of_nothing_is_nothing(tmp_path: Path) -> None:
    assert read_range(str(tmp_path / "none"), 7, 0) == b""


def test_text_is_read_with_and_without_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "val.txt"
    path.write_bytes("größe 1\r\n".encode())
    assert read_text(str(path)) == "größe 1\r\n"
    path.write_bytes("größe 1\r\n".encode("utf-8-sig"))
    assert read_text(str(path)) == "größe 1\r\n"
    path.write_bytes(b"")
    assert read_text(str(path)) == ""


def test_what_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "val.txt"
    path.write_bytes(b"name 1\n\xff\xd8\xff")
    with pytest.raises(SourceError, match=rf"^{path}: not a text file \(byte 7 is not UTF-8\)$"):
        read_text(str(path))
    write_files(tmp_path, "b.txt")
    with pytest.raises(SourceError, match=f"^{tmp_path}: a folder of 2 files; name one text file$"):
        read_text(str(tmp_path))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(-1, 700)),
        st.tuples(st.just("set"), st.integers(0, 1100)),
        st.tuples(st.just("cur"), st.integers(-700, 700)),
        st.tuples(st.just("end"), st.integers(-700, 20)),
    ),
    max_size=25,
)


@given(
    bounds=st.tuples(st.integers(0, len(CONTENT)), st.integers(0, len(CONTENT))),
    chunk=st.integers(1, 600),
    buffer=st.integers(1, 300),
    steps=STEPS,
)
def test_a_range_reader_is_a_file_of_the_slice(
    content_file: str, bounds: tuple[int, int], chunk: int, buffer: int, steps: list[tuple[str, int]]
) -> None:
    start, end = sorted(bounds)
    plain = io.BytesIO(CONTENT[start:end])
    reader = RangeReader(content_file, start, end - start, chunk)
    assert reader.readable()
    assert reader.seekable()
    buffered = io.BufferedReader(reader, buffer)
    for act, number in steps:
        if act == "read":
            assert buffered.read(number) == plain.read(number)
        else:
            whence = {"set": io.SEEK_SET, "cur": io.SEEK_CUR, "end": io.SEEK_END}[act]
            origin = {"set": 0, "cur": plain.tell(), "end": end - start}[act]
            number = max(number, -origin)
            assert buffered.seek(number, whence) == plain.seek(number, whence)
        assert buffered.tell() == plain.tell()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(start, length) of every range that is read meanwhile."""
    seen: list[tuple[int, int]] = []

    def noted(url: str, start: int, length: int) -> bytes:
        seen.append((start, length))
        return read_range(url, start, length)

    monkeypatch.setattr(source, "read_range", noted)
    return seen


def test_each_chunk_is_one_request(content_file: str, requests: list[tuple[int, int]]) -> None:
    reader = io.BufferedReader(RangeReader(content_file, 10, 700, chunk_bytes=200), 64)
    assert requests == []
    assert reader.read() == CONTENT[10:710]
    assert requests == [(10, 200), (210, 200), (410, 200), (610, 100)]


def test_a_large_read_is_one_request_where_that_is_asked_for(
    content_file: str, requests: list[tuple[int, int]]
) -> None:
    reader = io.BufferedReader(RangeReader(content_file, 10, 700, 64, whole_reads=True), 64)
    assert reader.read(10) == CONTENT[10:20]
    reader.seek(100)
    assert reader.read(550) == CONTENT[110:660]
    assert requests[0] == (10, 64)
    assert sum(size for _, size in requests) < 64 + 550 + 2 * 64
    assert len(requests) <= 3


def test_what_fits_into_a_chunk_is_one_request_however_it_is_read(
    content_file: str, requests: list[tuple[int, int]]
) -> None:
    reader = io.BufferedReader(RangeReader(content_file, 100, 900), 16)
    for offset in (0, 512, 3, 899, 40):
        reader.seek(offset)
        assert reader.read(1) == CONTENT[100 + offset : 101 + offset]
    assert reader.seek(0, io.SEEK_END) == 900
    assert reader.read() == b""
    assert requests == [(100, 900)]


def test_a_file_shorter_than_its_range_is_an_error(content_file: str) -> None:
    reader = io.BufferedReader(RangeReader(content_file, 1000, 100, chunk_bytes=20))
    assert reader.read(20) == CONTENT[1000:1020]
    with pytest.raises(SourceError, match=f"^{content_file}: short read at offset 1020: 4 bytes came of the 20 asked"):
        reader.read()
