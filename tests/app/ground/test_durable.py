"""What is written is there as a whole or not at all."""

import resource

import pytest

from espalier.app.ground.durable import append_text


def test_an_append_that_finds_no_room_leaves_no_part_of_itself(tmp_path):
    file = tmp_path / "lines"
    append_text(file, "first\n")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))  # room for a part of the second
    try:
        with pytest.raises(OSError, match="File too large"):
            append_text(file, "second\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    append_text(file, "third\n")
    assert file.read_text() == "first\nthird\n"
