"""Clients that know each other's keys: an edge can't make up clients, or show each another list of survivors."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from espalier.clients.messages.secure import (
    SECURE,
    SECURE_SEEN,
    SECURE_SHARES,
    SECURE_UNMASK,
    SealedShares,
    SecureOpening,
    SecureSeen,
    SecureShares,
    SecureUnmask,
)
from espalier.clients.messages.train import TRAIN
from espalier.clients.secure.identity import identity_of
from espalier.clients.secure.session import SecureSession
from espalier.clients.shared.secure.fixed_point import Form, Part
from espalier.clients.shared.secure.terms import SecureTerms
from espalier.strategies.secure import SUMMED
from tests.strategies.secure.keys import PEM, nodes_with_keys, public
from tests.strategies.secure.secure_clients import SIZES, failing_grid, secure, secure_federation
from tests.strategies.secure.test_secure_edge import distance, of_last, plain

TERMS, RUN = SecureTerms(signed=True), 7


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Return the configs of nodes that have their keys in files."""
    own = nodes_with_keys(tmp_path_factory.mktemp("keys"), len(SIZES))
    return [{"partition-id": i, **keys} for i, keys in enumerate(own)]


def run(nodes, gone=(), *, terms=TERMS, change=None, of_edge=TERMS):
    """Return what an edge round gave, in which `change` may change a message before its client gets it."""
    federation = secure_federation(terms)
    grid = failing_grid(federation, dict.fromkeys(gone, (TRAIN,)), node_configs=nodes, change=change)
    (found,) = federation.run(secure(terms=of_edge), rounds=1, grid=grid)
    return found


@pytest.mark.parametrize("gone", [(), (1,), (0, 3)], ids=str)
def test_signed_rounds_give_the_same_averages(nodes, gone):
    found = run(nodes, gone)
    assert distance(plain(gone, rounds=1)[0], found) < 1e-7
    assert of_last(found).metrics[SUMMED] == 5 - len(gone)


def test_a_client_with_keys_takes_part_in_signed_rounds_alone_and_one_without_in_others(nodes):
    unsigned = SecureTerms()
    for reason, found in (
        ("it takes part with secure.signed = true alone", run(nodes, terms=unsigned, of_edge=unsigned)),
        ("has no secure-key and secure-keys", run(None)),
    ):
        failures = of_last(found).failures
        assert [reason in failure.reason for failure in failures] == [True] * 5 + [False]
        assert "0 of 5 clients are left" in failures[-1].reason


def test_an_edge_that_answers_for_a_client_is_found_out(nodes):
    """It shows keys of its own, with the signature of the client in whose place it is."""

    def in_the_place_of_another(client, message):
        if message.metadata.message_type == SECURE_SHARES and client == 0:
            keys = message.content[SECURE]["mask-keys"]
            message.content[SECURE]["mask-keys"] = [bytes(31) + b"\x09", *keys[1:]]

    found = run(nodes, change=in_the_place_of_another)
    assert [failure.reason for failure in of_last(found).failures] == [
        "ValueError: a client that shares masks with it has not signed its keys"
    ]
    assert of_last(found).metrics[SUMMED] == 4


def test_a_client_that_nobody_knows_shares_no_mask(nodes, tmp_path):
    stranger = Ed25519PrivateKey.generate()
    (tmp_path / "own.pem").write_bytes(stranger.private_bytes(*PEM))
    known = Path(nodes[0]["secure-keys"]).read_text()
    (tmp_path / "known").write_text(f"{known}\n{public(stranger).hex()}")
    own = {"secure-key": str(tmp_path / "own.pem"), "secure-keys": str(tmp_path / "known")}
    found = run([*nodes[:-1], {**nodes[-1], **own}])
    reasons = [failure.reason for failure in of_last(found).failures]
    assert sum("is none that it knows" in reason for reason in reasons) == 4
    assert "void" in reasons[-1]


def test_an_edge_that_shows_clients_different_survivors_learns_nothing(nodes):
    """Client 0 alone is to see client 1 drop out, whose numbers have come."""

    def another_list(client, message):
        if message.metadata.message_type == SECURE_SEEN and client == 0:
            record = message.content[SECURE]
            own = public_of(nodes[0])
            other = next(signer for signer in record["survived"] if signer != own)
            record["survived"] = [signer for signer in record["survived"] if signer != other]

    found = run(nodes, change=another_list)
    # Client 0 brings no share, and the others bring theirs: four of five agree.
    assert of_last(found).metrics[SUMMED] == 5

    def half_see_another(client, message):
        if client in (0, 1, 2):
            another_list(0, message)

    void = run(nodes, change=half_see_another)
    assert of_last(void).arrays is None


def public_of(node):
    return identity_of(node).public


def test_a_signed_client_unmasks_only_what_most_have_signed(nodes):
    def unsigned(client, message):
        if message.metadata.message_type == SECURE_UNMASK:
            told = SecureUnmask.from_content(message.content)
            few = dict(list(told.signed.items())[:2])
            message.content[SECURE] = SecureUnmask(1, told.survived, told.dropped, few).to_content()[SECURE]

    void = run(nodes, change=unsigned)
    assert of_last(void).arrays is None
    assert "0 shares, 3 needed" in of_last(void).failures[-1].reason


class LyingEdge:
    """Brings clients, called 0 to 4, to where they have masked their numbers, and then tells them what it likes."""

    def __init__(self, identities, withheld=()):
        self.identities = identities
        sessions = [SecureSession(1) for _ in identities]
        self.keys = [own.keys(RUN, identity) for own, identity in zip(sessions, identities, strict=True)]
        shared = [
            own.share(SecureShares(1, i, {n: k for n, k in enumerate(self.keys) if n != i}), TERMS, RUN, identities[i])
            for i, own in enumerate(sessions)
        ]
        texts = [own.sealed for _, own in shared]
        self.sessions = [
            self.masked(own, {n: texts[n][i] for n in range(5) if n != i and (n, i) not in withheld})
            for i, (own, _) in enumerate(shared)
        ]
        self.shown = {keys.signer: keys.commitment for keys in self.keys}

    def masked(self, session, sealed):
        model = {"w": torch.zeros(3)}
        opened = session.open(SecureOpening(1, 5, 10, SealedShares(sealed)), TERMS, b"")
        return opened.mask(Part(model, 10, 0.0), Form(model), TERMS)[0]

    def sign(self, client, survived=range(5), **others):
        """Let a client sign a list of survivors, and return its signature."""
        told = SecureSeen(
            1, **{"shown": self.shown, "survived": tuple(self.keys[n].signer for n in survived), **others}
        )
        self.sessions[client], signature = self.sessions[client].sign(told, TERMS, RUN, self.identities[client])
        return signature

    def unmask(self, client, survived, dropped, signatures):
        told = SecureUnmask(1, tuple(survived), tuple(dropped), {self.keys[n].signer: s for n, s in signatures.items()})
        return self.sessions[client].unmask(told, TERMS, RUN, self.identities[client])


@pytest.fixture
def identities(nodes):
    return [identity_of(node) for node in nodes]


def test_signatures_of_a_round_are_no_good_for_another_of_its_number(identities):
    """Else an edge that repeats the round until each list is signed could show each client another one."""
    first, again = LyingEdge(identities), LyingEdge(identities)
    old = {n: first.sign(n) for n in range(5)}
    assert again.sign(0) != old[0]
    with pytest.raises(ValueError, match="0 clients saw the same"):
        again.unmask(0, range(5), (), old)
    new = {n: again.sign(n) for n in (1, 2, 3)}
    assert again.unmask(0, range(5), (), new).keys() == set(range(5))


def test_a_client_signs_no_list_of_others_than_it_shares_masks_with(identities):
    """Else each could be shown a graph of its own, where all neighbours of one client are said to have dropped out."""
    edge = LyingEdge(identities, withheld={(4, 0)})
    with pytest.raises(ValueError, match="shares no mask with it"):
        edge.sign(0)
    assert edge.sign(0, range(4))
    stranger = Ed25519PrivateKey.generate()
    known = replace(identities[1], known=identities[1].known | {public(stranger)})
    edge.identities = [identities[0], known, *identities[2:]]
    with pytest.raises(ValueError, match="shares no mask with it"):
        edge.sign(1, shown={**edge.shown, public(stranger): bytes(32)})
    with pytest.raises(ValueError, match="are not the clients that it knows"):
        edge.sign(1, shown={**edge.shown, edge.keys[0].signer: bytes(32)})


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"secure-key": "x.pem"}, "has one of secure-key and secure-keys"),
        ({"secure-key": "nowhere.pem", "secure-keys": "nowhere"}, "can't be read"),
    ],
)
def test_keys_that_are_not_there_are_named(config, reason):
    assert identity_of({"partition-id": 0}) is None
    with pytest.raises(ValueError, match=reason):
        identity_of(config)
