"""What can be asked of compression, and what is said where it can't be."""

import re

import pytest
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg

from espalier.app.config.parse import parse_config
from espalier.app.config.together import check_strategies
from espalier.app.features.compression.codecs import CODECS, NONE, codec_of
from espalier.app.features.compression.settings import Compression
from espalier.app.ground.errors import UserError
from espalier.clients.shared.compression import Int8, Qsgd, TopK
from tests.app.runs import run_app, same_weights

SMALL = {"num-clients": 4, "num-edges": 2, "edge-rounds": 1, "global-rounds": 1, "batches-per-epoch": 1}


class Own(Int8):
    """A user's own codec."""


def clipping(**options):
    """Return a strategy whose clients clip."""
    return DifferentialPrivacyClientSideFixedClipping(FedAvg(**options), 0.0, 1.0, 2)


def make_nothing():
    """Return what is no codec."""


@pytest.mark.parametrize("name", CODECS)
def test_every_codec_has_defaults(name):
    config = parse_config({"compress.client": name, "compress.edge": name})
    assert codec_of(config[Compression].client) == codec_of(config[Compression].edge) == CODECS[name]()
    assert config.as_dict()["compress.client"] == name


def test_codecs_take_arguments():
    config = parse_config({"compress.client": "top-k(share=0.25)", "compress.edge": "qsgd(levels=3, bucket=64)"})
    assert codec_of(config[Compression].client) == TopK(0.25)
    assert codec_of(config[Compression].edge) == Qsgd(3, 64)
    assert codec_of(parse_config({})[Compression].client) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"compress.client": "topk"}, "compress.client = 'topk': allowed is 'none', .* did you mean 'top-k'?"),
        ({"compress.client": 3}, "compress.client = 3: allowed is a string"),
        ({"compress.client": "qsgd(7)"}, r"allowed is 'none', 'float16', 'int8', 'qsgd', 'top-k', or package.module:"),
        ({"compress.edge": "qsgd(levels=0)"}, r"allowed is qsgd\(levels=7, bucket=512\) or the like \(levels is 0"),
        ({"compress.client": "top-k(share=2)"}, r"allowed is top-k\(share=0.1\) or the like \(share is 2"),
        ({"compress.client": "int8(scale=2)"}, "allowed is int8 without arguments or the like"),
        ({"compress.client": "none(a=1)"}, "did you mean 'none'"),
        ({"compress.client": "no_such_module:Own"}, "what can be imported"),
        ({"compress.client": f"{__name__}:make_nothing"}, "what makes an espalier.clients.shared.compression.Codec"),
        (
            {"compress.client": "int8", "algorithm": "phsfl", "tail-layer": "head"},
            "'none' for algorithm = 'phsfl', whose tail keeps its weights",
        ),
        (
            {"compress.client": "int8", "algorithm": "rawhfl"},
            "'none' for algorithm = 'rawhfl', whose clients send",
        ),
        ({"compress.client": "int8", "selection": "resource-aware"}, "'none' for plans, which count the bits"),
        (
            {"compress.edge": "top-k(share=0.1)", "deploy.role": "cloud"},
            "'none' for deploy.role = 'cloud': an edge on a host of its own keeps nothing between rounds",
        ),
        (
            {"compress.edge": "int8", "async.mode": "fedbuff"},
            "'none' for async.mode = 'fedbuff', where edges may",
        ),
    ],
)
def test_what_can_not_be_is_said_in_one_line(given, said):
    with pytest.raises(UserError) as raised:
        parse_config(given)
    assert "\n" not in str(raised.value)
    assert re.search(said, str(raised.value)), str(raised.value)


def test_clients_that_clip_do_not_compress():
    config = parse_config({"compress.client": "int8", "edge-strategy": f"{__name__}:clipping", "algorithm": "h-fedavg"})
    with pytest.raises(UserError, match="for which clients clip: what is decoded may be longer"):
        check_strategies(config)


def test_an_own_codec_is_named_by_its_module(tmp_path):
    made = [
        run_app(tmp_path / codec[-4:], **SMALL, **{"compress.client": codec, "compress.edge": codec})
        for codec in (f"{__name__}:Own", "int8")
    ]
    assert same_weights(*made)


def test_none_is_the_default():
    assert {spec.text for spec in (Compression().client, Compression().edge)} == {NONE}
