import os
import time

import pytest

from espalier.app.ground.errors import UserError
from espalier.app.tasks.cache import fingerprint, load_or_build


def write(text):
    def build(folder):
        (folder / "value").write_text(text)

    return build


def read(folder):
    try:
        text = (folder / "value").read_text()
    except OSError as error:
        raise ValueError(error) from error
    if text == "damaged":
        raise ValueError(text)
    return text


def fail(folder):
    raise AssertionError("must not be built again")


def test_it_is_built_once(tmp_path):
    folder = tmp_path / "cache" / "entry"
    assert load_or_build(folder, build=write("one"), load=read) == "one"
    assert load_or_build(folder, build=fail, load=read) == "one"
    assert os.listdir(tmp_path / "cache") == ["entry"]


@pytest.mark.parametrize("exception", [RuntimeError, UserError, KeyboardInterrupt])
def test_nothing_is_left_when_building_fails(tmp_path, exception):
    def build(folder):
        write("half")(folder)
        raise exception("stop")

    with pytest.raises(exception, match="stop"):
        load_or_build(tmp_path / "entry", build=build, load=read)
    assert os.listdir(tmp_path) == []


def test_a_damaged_entry_is_built_again_and_the_log_says_so(tmp_path, caplog):
    folder = tmp_path / "entry"
    load_or_build(folder, build=write("one"), load=read)
    write("damaged")(folder)
    assert load_or_build(folder, build=write("two"), load=read) == "two"
    assert "damaged cache" in caplog.text
    assert os.listdir(tmp_path) == ["entry"]


def test_a_writer_that_ends_first_wins(tmp_path):
    folder = tmp_path / "entry"

    def build(new):
        load_or_build(folder, build=write("first"), load=read)
        write("second")(new)

    assert load_or_build(folder, build=build, load=read) == "first"
    assert os.listdir(tmp_path) == ["entry"]


def test_what_a_killed_builder_left_goes_after_a_day(tmp_path):
    stale, recent = tmp_path / ".building-stale", tmp_path / ".building-recent"
    for folder in (stale, recent):
        folder.mkdir()
        write("half")(folder)
    yesterday = time.time() - 25 * 3600
    os.utime(stale, (yesterday, yesterday))
    load_or_build(tmp_path / "entry", build=write("one"), load=read)
    assert sorted(os.listdir(tmp_path)) == [".building-recent", "entry"]


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    cache_dir = tmp_path / "file" / "cache"
    with pytest.raises(UserError) as caught:
        load_or_build(cache_dir / "entry", build=write("one"), load=read)
    assert str(caught.value) == (
        f"{cache_dir}: cannot be written (Not a directory): set data.cache-dir to a folder that can"
    )


def test_the_fingerprint_follows_names_sizes_times_and_settings(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    for file in (a, b):
        file.write_text("text")
        os.utime(file, ns=(0, 0))
    key = fingerprint(tmp_path, [a, b], 32)
    assert key == fingerprint(tmp_path, [b, a], 32)
    assert key != fingerprint(tmp_path, [a], 32)
    assert key != fingerprint(tmp_path, [a, b], 64)
    os.utime(a, ns=(0, 1))
    assert key != fingerprint(tmp_path, [a, b], 32)
    os.utime(a, ns=(0, 0))
    assert key == fingerprint(tmp_path, [a, b], 32)
    a.write_text("longer text")
    os.utime(a, ns=(0, 0))
    assert key != fingerprint(tmp_path, [a, b], 32)


def test_a_file_that_is_gone_is_named(tmp_path):
    with pytest.raises(UserError, match="gone: cannot be read"):
        fingerprint(tmp_path, [tmp_path / "gone"])
