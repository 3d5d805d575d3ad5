import gc
import io
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparknet.errors import ShardError, SourceError
from sparknet.loaders.source import open_scan
from sparknet.loaders.tar import Member, read_members, scan
from tests.sets import tar_bytes

URL = "s3://bucket/some.tar"
BLOCK = 512

# Three members, their headers and their data, and where the end-of-archive mark begins.
THREE = {"a.jpg": b"a" * 700, "b.jpg": b"b" * 512, "d/c.jpg": b"c" * 1537}
HEADERS, DATA, END = (0, 1536, 2560), (512, 2048, 3072), 5120


def read(tar: bytes, base: int = 0, end_mark: bool = True) -> list[tuple[Member, bytes]]:
    return list(read_members(io.BytesIO(tar), URL, base, end_mark))


def contents(tar: bytes) -> dict[str, bytes]:
    return {member.name: data for member, data in read(tar)}


def any_tar(members: dict[str, bytes], tar_format: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tar_format) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def replaced(tar: bytes, at: int, by: bytes) -> bytes:
    return tar[:at] + by + tar[at + len(by) :]


def with_header(tar: bytes, header: int, field: int, value: bytes) -> bytes:
    """Overwrite a field of a header, and make its checksum right again."""
    block = bytearray(replaced(tar, header + field, value)[header : header + BLOCK])
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return replaced(tar, header, bytes(block))


@pytest.mark.parametrize("base", [0, 512, 1_000_003])
def test_members_are_where_they_say(base: int) -> None:
    tar = tar_bytes(THREE)
    assert read(tar, base) == [
        (Member(name, base + at, len(data), base + header), data)
        for (name, data), at, header in zip(THREE.items(), DATA, HEADERS, strict=True)
    ]
    assert [tar[at : at + len(data)] for at, data in zip(DATA, THREE.values(), strict=True)] == [*THREE.values()]
    assert tar_bytes(THREE, end_mark=False) == tar[:END]


def test_scanning_and_reading_see_the_same() -> None:
    tar = tar_bytes(THREE)
    assert list(scan(io.BytesIO(tar), URL)) == [member for member, _ in read(tar)]


def test_the_file_may_stand_anywhere() -> None:
    file = io.BytesIO(tar_bytes(THREE))
    file.seek(777)
    assert [member.name for member in scan(file, URL)] == [*THREE]


NAMES = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=120
).filter(lambda name: name.strip() == name and name not in (".", ".."))


@given(
    members=st.dictionaries(NAMES, st.binary(max_size=1200), max_size=6),
    tar_format=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    base=st.integers(0, 2**40),
)
def test_whatever_tarfile_writes_comes_out(members: dict[str, bytes], tar_format: int, base: int) -> None:
    tar = any_tar(members, tar_format)
    found = read(tar, base)
    kept = [(name, data) for name, data in members.items() if not name.rpartition("/")[2].startswith("._")]
    assert [(member.name, data) for member, data in found] == kept
    for member, data in found:
        assert tar[member.offset - base : member.offset - base + member.size] == data


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_are_whole_and_begin_at_their_first_header(tar_format: int) -> None:
    long = "n01440764/" + "ü" * 150 + ".JPEG"
    members = {"first": b"1", long: b"22", "last": b"3"}
    found = [member for member, _ in read(any_tar(members, tar_format))]
    assert [member.name for member in found] == [*members]
    assert found[1].header == 1024
    assert found[1].offset >= found[1].header + 3 * BLOCK  # its own header, and one with the name
    assert found[2].header == found[1].offset + BLOCK


def test_folders_are_skipped_and_links_have_no_bytes() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind in (("n1", tarfile.DIRTYPE), ("n1/soft", tarfile.SYMTYPE), ("n1/hard", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "n1/a"
            tar.addfile(info)
        info = tarfile.TarInfo("n1/a")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    assert [(member.name, member.size, data) for member, data in read(out.getvalue())] == [
        ("n1/soft", 0, b""),
        ("n1/hard", 0, b""),
        ("n1/a", 3, b"abc"),
    ]


def test_a_hard_link_that_repeats_the_size_of_its_target_has_no_bytes() -> None:
    tar = tar_bytes({"link": b"", "a": b"abc"})
    tar = with_header(with_header(tar, 0, 156, b"1"), 0, 124, b"00000000003\0")
    assert contents(tar) == {"link": b"", "a": b"abc"}


def test_a_tar_of_nothing_has_no_member() -> None:
    assert read(tar_bytes({})) == []


def test_one_block_of_zeros_is_mark_enough() -> None:
    assert contents(tar_bytes(THREE, end_mark=False) + bytes(BLOCK)) == THREE


@pytest.mark.parametrize("cut", [END + 512, END + 513, END + 1000, END + 1024, END + 1025])
def test_cut_within_the_second_zero_block_or_behind_it_loses_nothing(cut: int) -> None:
    assert contents(tar_bytes(THREE)[:cut]) == THREE


CUTS = {
    "nothing left": (0, 0, "not a tar at offset {base}: empty file"),
    "in the first header": (100, 0, "not a tar at offset {base}: truncated header"),
    "after the first header": (512, 0, "cut off at offset {cut}, within a.jpg (at {data}, 700 bytes)"),
    "in the first data": (1000, 0, "cut off at offset {cut}, within a.jpg (at {data}, 700 bytes)"),
    "in the first padding": (1212, 0, "cut off at offset {cut}, within a.jpg (at {data}, 700 bytes)"),
    "before the last byte of padding": (1535, 0, "cut off at offset {cut}, within a.jpg (at {data}, 700 bytes)"),
    "between members": (1536, 1, "cut off at offset {cut}: a tar ends with an end-of-archive mark, this one has none"),
    "in the second header": (1537, 1, "cut off at offset {cut}: a tar ends with"),
    "in the last data": (5000, 2, "cut off at offset {cut}, within d/c.jpg (at {data}, 1537 bytes)"),
    "before the mark": (5120, 3, "cut off at offset {cut}: a tar ends with"),
    "in the first zero block": (5631, 3, "cut off at offset {cut}: a tar ends with"),
}


@pytest.mark.parametrize("base", [0, 512 * 2001])
@pytest.mark.parametrize(("cut", "whole", "message"), CUTS.values(), ids=CUTS)
def test_cut_tars_are_errors_that_name_url_and_offset(cut: int, whole: int, message: str, base: int) -> None:
    found: list[str] = []
    with pytest.raises(ShardError) as raised:
        found.extend(member.name for member in scan(io.BytesIO(tar_bytes(THREE)[:cut]), URL, base))
    expected = message.format(base=base, cut=base + cut, data=base + DATA[min(whole, 2)])
    assert str(raised.value).startswith(f"{URL}: {expected}")
    assert found == [*THREE][:whole]


@given(
    sizes=st.lists(st.sampled_from([0, 1, 511, 512, 513, 1024, 1500]), min_size=1, max_size=4),
    tar_format=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    long_names=st.booleans(),
    cut=st.floats(0, 1),
    read_data=st.booleans(),
)
@example(sizes=[512, 512], tar_format=tarfile.USTAR_FORMAT, long_names=False, cut=0.1, read_data=False)
def test_a_tar_cut_anywhere_is_an_error_or_complete(
    sizes: list[int], tar_format: int, long_names: bool, cut: float, read_data: bool
) -> None:
    stem = "x" * 150 + "ü" if long_names and tar_format != tarfile.USTAR_FORMAT else "x"
    members = {f"{i}{stem}": bytes([i + 1]) * size for i, size in enumerate(sizes)}
    tar = any_tar(members, tar_format)
    end = read(tar)[-1][0].offset + -(-sizes[-1] // BLOCK) * BLOCK
    length = round(cut * (end + 2 * BLOCK))  # what lies behind is padding
    walk: Callable[..., object] = read if read_data else lambda part: list(scan(io.BytesIO(part), URL))
    if length >= end + BLOCK:
        assert walk(tar[:length]) == walk(tar)
    else:
        with pytest.raises(ShardError, match=f"^{URL}: (cut off|not a tar).* at offset "):
            walk(tar[:length])


@pytest.mark.parametrize(
    "at", [*range(0, END, 97), *(header + byte for header in HEADERS for byte in range(0, 500, 31))]
)
def test_a_hole_of_zeros_loses_no_member_in_silence(at: int) -> None:
    """What a download leaves out, a disk reads as zeros: like an end-of-archive mark."""
    holed = replaced(tar_bytes(THREE), at, bytes(min(BLOCK, END - at)))
    try:
        found = contents(holed)
    except ShardError as error:
        assert str(error).startswith(f"{URL}: ")
        return
    assert [*found] == [*THREE]


def test_a_header_that_was_never_written_is_named_with_what_follows() -> None:
    holed = replaced(tar_bytes(THREE), HEADERS[1], bytes(BLOCK))
    with pytest.raises(ShardError) as raised:
        read(holed, base=512)
    assert str(raised.value) == (
        f"{URL}: end-of-archive mark at offset {512 + HEADERS[1]}, but the tar goes on to offset {512 + len(holed)}; "
        "a part of it was never written, or is damaged; copy or fetch the file again"
    )


def test_megabytes_of_zeros_behind_the_mark_are_a_file_that_was_not_wholly_written() -> None:
    tar = tar_bytes(THREE)
    assert contents(tar[:END] + bytes(1024 * 1024)) == THREE  # tar -b 2048
    with pytest.raises(ShardError, match=f"end-of-archive mark at offset {END}, but the tar goes on to offset {2**21}"):
        read(tar[:END] + bytes(2**21 - END))


def test_a_damaged_header_in_the_middle_is_named() -> None:
    for byte in (0, 100, 130, 148, 345):
        broken = bytearray(tar_bytes(THREE))
        broken[HEADERS[1] + byte] ^= 0xFF
        with pytest.raises(ShardError) as raised:
            read(bytes(broken), base=10_240)
        assert (
            str(raised.value) == f"{URL}: damaged header at offset {10_240 + HEADERS[1]}; copy or fetch the file again"
        )


@pytest.mark.parametrize(
    "size", [b"77777777777\0", b"\x80\0\0\0\x7f" + b"\xff" * 7, b"\xff" * 12, b"00000000000\0", b"00000003000\0"]
)
def test_a_header_with_a_wrong_size_and_a_right_checksum_is_an_error(size: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(with_header(tar_bytes(THREE), HEADERS[1], 124, size))
    with pytest.raises(ShardError, match=f"^{path}: "), open_scan(str(path)) as stream:
        list(read_members(stream, str(path)))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"name 1\n" * 500, id="text"),
        pytest.param(b"short", id="short"),
        pytest.param(b"", id="empty"),
        pytest.param(b"\x1f\x8b\x08" + bytes(range(256)) * 5, id="gzip"),
        pytest.param(b"\xff\xd8\xff\xe0" + b"x" * 1000, id="jpeg"),
    ],
)
def test_what_is_no_tar_is_named(data: bytes) -> None:
    with pytest.raises(ShardError, match=f"^{re.escape(URL)}: not a tar at offset 12: "):
        read(data, base=12)


@given(st.binary(max_size=2000))
def test_random_bytes_are_an_error_or_nothing(data: bytes) -> None:
    try:
        assert read(data) == []
    except ShardError as error:
        assert str(error).startswith(URL)


@given(data=st.data())
def test_a_changed_byte_loses_no_member_in_silence(data: st.DataObject) -> None:
    tar = any_tar({"a" * 120: b"1" * 600, "b": b"2", "ü" * 80: b"", "d": b"4" * 512}, tarfile.PAX_FORMAT)
    at = data.draw(st.integers(0, len(tar) - 1))
    changed = replaced(tar, at, bytes([data.draw(st.integers(0, 255))]))
    try:
        found = read(changed)
    except ShardError as error:
        assert str(error).startswith(URL)
        return
    assert len(found) == 4


def test_two_tars_end_to_end_are_not_taken_for_the_first() -> None:
    with pytest.raises(ShardError, match="end-of-archive mark at offset 5120, but the tar goes on"):
        read(tar_bytes(THREE) + tar_bytes(THREE))


def test_a_run_of_members_needs_no_mark_but_ends_between_members() -> None:
    tar = tar_bytes(THREE)
    run = tar[HEADERS[1] : END]
    found = read(run, base=HEADERS[1], end_mark=False)
    assert found == read(tar)[1:]
    with pytest.raises(ShardError, match=f"cut off at offset {HEADERS[1] + len(run)}: "):
        read(run, base=HEADERS[1])
    with pytest.raises(ShardError, match=f"cut off at offset {END - 1}, within d/c.jpg"):
        read(run[:-1], base=HEADERS[1], end_mark=False)
    with pytest.raises(ShardError, match=f"cut off at offset {END + 10}: "):
        read(tar[HEADERS[1] : END] + b"x" * 10, base=HEADERS[1], end_mark=False)


def test_data_that_come_short_are_an_error() -> None:
    class Shrinking(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(size)[:600]

    with pytest.raises(ShardError) as raised:
        list(read_members(Shrinking(tar_bytes(THREE)), URL))
    assert (
        str(raised.value)
        == f"{URL}: cut off at offset 1112, within a.jpg (600 of 700 bytes); copy or fetch the file again"
    )


def test_a_disk_that_fails_is_named() -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() >= 1536:
                raise OSError(5, "Input/output error")
            return super().read(size)

    with pytest.raises(SourceError, match=f"^{URL}: cannot be read: .*Input/output error"):
        list(read_members(Failing(tar_bytes(THREE)), URL))


def test_headers_that_were_seen_are_let_go() -> None:
    walk = scan(io.BytesIO(tar_bytes({f"{i}": b"" for i in range(500)})), URL)
    assert [member.name for _, member in zip(range(500), walk, strict=False)][-1] == "499"
    assert sum(type(found) is tarfile.TarInfo for found in gc.get_objects()) < 10
