"""What a pass asks for."""

import pytest

from espalier.clients.shared.correction import Correction
from espalier.clients.shared.local_round import OptimizerState, Pass


def test_blocks_of_a_cut_model_take_a_correction_and_nothing_more():
    drawn = Correction(pull=0.5)
    assert Pass(correction=drawn).corrected() is drawn
    for more in ({"start": {}}, {"trains": ()}, {"epochs": 1}, {"batches": (0,)}, {"optimizer": OptimizerState()}):
        with pytest.raises(ValueError, match="which a cut model can't"):
            Pass(correction=drawn, **more).corrected()


def test_a_pass_trains_those_that_it_names_in_the_order_of_the_model():
    assert Pass().among(["a", "b", "c"]) == ["a", "b", "c"]
    assert Pass(trains={"c", "a", "x"}).among(["a", "b", "c"]) == ["a", "c"]
