"""How long a sweep takes is told by the rounds that it has made."""

from espalier.app.sweeps.progress import seconds_left


def test_rounds_left_take_as_long_as_those_made_and_no_less_than_the_one_being_made():
    assert seconds_left(3, 7, last=30.0, now=30.0) == 70.0
    assert seconds_left(3, 7, last=30.0, now=39.0) == 70.0
    assert seconds_left(3, 7, last=30.0, now=60.0) == 105.0
    assert seconds_left(10, 0, last=30.0, now=60.0) == 0.0
