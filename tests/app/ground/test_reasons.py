"""Tables of reasons: the first that holds is said, and keys without a use are told with theirs."""

from espalier.app.ground.reasons import first_reason, unused


def test_the_first_reason_that_holds_is_said():
    assert first_reason((0, "a"), ("so", "b"), (True, "c")) == "b"
    assert first_reason((None, "a"), ("", "b")) == first_reason() == ""


def test_keys_without_a_use_are_those_of_the_rows_that_hold():
    assert list(unused((False, ("a",), "one"), (2, ("b", "c"), "two"), ("x", ("b",), "three"))) == [
        (("b", "c"), "two"),
        (("b",), "three"),
    ]
