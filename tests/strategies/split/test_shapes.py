"""What a sample tells of a model."""

from espalier.strategies.split.shapes import draws_random_numbers
from tests.strategies.split.federation import SHAPE, model_with_dropout, tiny_model


def test_only_models_that_draw_are_seeded():
    assert draws_random_numbers(model_with_dropout(), SHAPE)
    assert draws_random_numbers(model_with_dropout()[1:], (4, 8, 8))
    assert not draws_random_numbers(tiny_model(), SHAPE)
