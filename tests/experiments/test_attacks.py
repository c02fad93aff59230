"""The tables of attacks in the docs are those of the recorded runs, and attacks find what there is to find."""

import re
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from espalier.clients.messages.frames import Format
from espalier.clients.messages.labels import LabelTerms
from espalier.clients.messages.split import SplitBegin
from espalier.clients.shared.arrays import to_record, to_weights
from espalier.clients.shared.cut import as_blocks, copied, part_of
from experiments import attacks, privacy
from experiments.attacking import figure, hijack, inverted_updates, noisy_cut
from experiments.attacking.inversion import Search, flat, input_of_linear, inverted, update_of
from experiments.attacking.likeness import PSNR, likeness, matched, squared_errors
from experiments.attacking.noisy import Noisy, with_noise
from experiments.attacking.records import COLUMNS, Measured, Pictures
from experiments.attacking.tables import mean_of, tables
from experiments.attacking.updates import rounds_of
from experiments.records import read_rows

ROOT = Path(__file__).parents[2]
RECORDED, PAGE = ROOT / "docs/data/attacks.csv", ROOT / "docs/attacks.md"


def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def recorded():
    return read_rows(RECORDED, COLUMNS)


def test_the_tables_of_the_docs_are_those_of_the_recorded_runs(recorded):
    found, text = tables(recorded), PAGE.read_text()
    assert len(found) == 4
    assert [table for table in found if table not in text] == []


def test_every_attack_is_recorded_once_with_each_seed(recorded):
    assert {(row["part"], row["seed"]) for row in recorded} == {(p, s) for p in attacks.ATTACKS for s in attacks.SEEDS}
    rows = [tuple(row[key] for key in ("attack", "setting", "defence", "seed", "measure")) for row in recorded]
    assert len(set(rows)) == len(rows)
    updates = {(one.name, defence.name) for one in inverted_updates.SETTINGS for defence in one.defences}
    assert {(row["setting"], row["defence"]) for row in recorded if row["part"] == "updates"} == updates
    hijacks = {(case.attack, case.defence) for case in hijack.CASES}
    assert {(row["attack"], row["defence"]) for row in recorded if row["part"] == "hijack"} == hijacks


@pytest.mark.parametrize("outputs", [1, 10])
def test_the_gradient_of_a_linear_layer_with_a_bias_gives_its_input_exactly(outputs):
    layer = nn.Linear(64, outputs, dtype=torch.float64)
    image = torch.rand(64, generator=generator(), dtype=torch.float64)
    layer(image[None]).square().sum().backward()
    torch.testing.assert_close(input_of_linear(layer.weight.grad, layer.bias.grad), image, rtol=0, atol=1e-12)


def tiny():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 3))
    return model, {name: weight.detach() for name, weight in model.named_parameters()}


def test_inversion_finds_one_image_of_a_tiny_model_and_nothing_behind_infinite_noise():
    model, weights = tiny()
    images, labels = torch.rand(6, 1, 1, 1, 4, 4, generator=generator()), torch.arange(6).view(6, 1, 1) % 3
    updates = torch.stack(
        [flat(update_of(model, weights, x, y, 0.1), weights) for x, y in zip(images, labels, strict=True)]
    )
    middle = torch.full((1, 4, 4), 0.5)
    search, options = Search(100, smoothness=0.0), (lambda pixels: pixels, 0.1, middle)
    found = inverted(model, weights, updates, labels, *options, search=search)
    true = images.flatten(0, 2)
    assert squared_errors(found[:, 0], true).mean() < 1e-3
    noise = 1e6 * torch.randn(updates.shape, generator=generator())
    nothing = inverted(model, weights, updates + noise, labels, *options, search=search)
    assert squared_errors(nothing[:, 0], true).mean() > squared_errors(middle.expand_as(true), true).mean()


@pytest.mark.parametrize(("batch", "steps"), [(1, 1), (3, 2)])
def test_the_update_that_is_searched_for_is_the_clients_own(batch, steps):
    config = {**inverted_updates.RUN, "batch-size": batch, "batches-per-epoch": steps, "model": "small-cnn", "seed": 1}
    for victim in islice(rounds_of(config), 2):
        assert [len(own) for own in victim.batches] == [batch] * steps
        scale, shift = inverted_updates.prepared_by(victim)
        inputs = (victim.images * scale + shift).view(steps, batch, 1, 8, 8)
        labels = victim.labels.view(steps, batch)
        made = update_of(victim.task.model, victim.before, inputs, labels, inverted_updates.RATE)
        torch.testing.assert_close(victim.update, made, rtol=0, atol=1e-6)


def test_defences_are_in_what_the_edge_gets():
    setting = replace(inverted_updates.SETTINGS[0], images=4)
    plain, _, top, summed, *noisy = inverted_updates.DEFENCES
    seen = {one: inverted_updates.seen_of(setting, one, 0, 4) for one in (plain, top, summed, noisy[2], noisy[5])}
    assert [len(own) for own in seen.values()] == [4, 4, 1, 4, 4]
    own, (mean,) = [one.update for one in seen[plain]], seen[summed]
    torch.testing.assert_close(mean.update, {name: sum(one[name] for one in own) / 4 for name in own[0]})
    assert len(mean.images) == 4
    kept = seen[top][0].update["1.weight"]
    assert torch.count_nonzero(kept) == 64  # of 640
    for noise in noisy[2], noisy[5]:  # a standard deviation of the clip, or of the rate times the clip
        deviation = torch.stack([one.update["1.weight"] for one in seen[noise]]).std()
        assert deviation == pytest.approx(0.1, rel=0.1)


def test_a_linear_model_gives_its_only_image_away():
    setting = replace(inverted_updates.SETTINGS[0], images=2, defences=(inverted_updates.NONE,))
    *figures, shown = inverted_updates.measured(0, [setting])
    values = {one.measure: one.value for one in figures}
    assert (values[PSNR], values[inverted_updates.LABEL]) == (pytest.approx(100), 1)
    torch.testing.assert_close(shown.rebuilt, shown.true, rtol=0, atol=1e-4)


def test_rebuilt_images_are_compared_in_the_order_in_which_they_fit_best():
    images = torch.rand(6, 1, 8, 8, generator=generator())
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    assert torch.equal(matched(images[order], images), images)
    assert likeness(images, images) == {"mse": 0, "psnr": 100, "ssim": pytest.approx(1)}
    worse = likeness(images[order], images)
    assert worse["psnr"] == pytest.approx(-10 * torch.log10(torch.tensor(worse["mse"])).item(), abs=1e-4)
    assert worse["ssim"] < 0.6


def test_activations_are_clipped_and_get_noise_in_training_alone():
    values = 10 * torch.randn(400, 3, 4, generator=generator())
    assert torch.equal(Noisy(1.0, 2.0).eval()(values), values)
    assert Noisy(1.0, 0.0)(values).flatten(1).norm(dim=1).max() <= 1 + 1e-6
    short = values / 1e6
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert (Noisy(3.0, 0.5)(short) - short).std() == pytest.approx(1.5, rel=0.03)


@pytest.fixture(scope="module")
def clients():
    return hijack.victim_and_own(0)


def test_a_hijacked_client_makes_its_own_sessions_steps(clients):
    victim, _ = clients
    training = replace(victim.training, optimizer="sgd", learning_rate=0.1, batches_per_epoch=1)
    task = replace(victim, training=training)
    front = copied(part_of(as_blocks(task.model), 0, 1))
    before = to_record(front.state_dict())
    seen = []

    def answer(values, labels):
        seen.append((values, labels))
        return torch.full_like(values, 0.01)

    done = hijack.train_round(task, SplitBegin(before, 1, 1, LabelTerms("labels")), Format(), answer)
    ((values, labels),) = seen
    inputs = (done.images * 255).round().to(torch.uint8)
    outputs = front(task.prepare(inputs))
    torch.testing.assert_close(outputs.detach(), values)
    assert cross_entropy(torch.eye(10)[labels.long()] * 50, labels.long()) < 1e-6  # they are classes
    outputs.backward(torch.full_like(outputs, 0.01))
    expected = {name: weight.detach() - 0.1 * weight.grad for name, weight in front.named_parameters()}
    torch.testing.assert_close(to_weights(done.block), expected)


def test_a_tail_changes_nothing_of_a_hijack(clients):
    plain, tail = (hijack.Case(hijack.HIJACKED, 1, has_tail=has_tail) for has_tail in (False, True))
    found = []
    for case in (plain, tail):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            found.append(list(hijack.attacked(case, *clients, rounds=1)))
    ((_, images, rebuilt),), ((_, same_images, same),) = found
    assert torch.equal(images, same_images)
    torch.testing.assert_close(rebuilt, same)


def test_noise_reaches_what_is_read_of_a_run():
    short = {"num-clients": 2, "global-rounds": 1, "edge-rounds": 1, "batches-per-epoch": 4}
    found = {(one.defence, one.measure): one for one in noisy_cut.measured(0, (0.0, 4.0), **short)}
    rebuilt = f"{privacy.ACTIVATIONS}, {privacy.REBUILT}"
    assert found["none", rebuilt].value > 0.5
    assert found["noise 4", rebuilt].value < 0.1
    assert found["noise 4", noisy_cut.ACCURACY].value > 0


def test_noise_leaves_the_names_of_weights_as_they_are(clients):
    victim, _ = clients
    noisy = with_noise(victim, 2, 1.0)
    assert noisy.model.state_dict().keys() == victim.model.state_dict().keys()
    assert isinstance(as_blocks(noisy.model)[1][-1], Noisy)


@pytest.mark.usefixtures("with_png")
def test_a_figure_has_a_row_for_each_attack(tmp_path):
    images = torch.rand(4, 1, 8, 8, generator=generator())
    figure.draw(tmp_path / "attacks.png", [Pictures("hijacked", "cut 1, round 1", "none", images, images)] * 2)
    assert (tmp_path / "attacks.png").stat().st_size > 5_000


def test_attacks_that_have_rows_are_not_made_again(tmp_path, monkeypatch, capsys):
    made = []

    def attack(seed):
        made.append(seed)
        yield Measured("attack", "setting", "none", "psnr", 12.0 + seed, 11.0, 4)

    monkeypatch.setattr(attacks, "ATTACKS", {"mine": attack})
    command = ["--csv", str(tmp_path / "runs.csv"), "--seeds", "3"]
    for seeds in ([], ["4"], []):
        attacks.main([*command, *seeds])
    assert made == [3, 4]
    assert mean_of(read_rows(tmp_path / "runs.csv", COLUMNS), measure="psnr") == 15.5


def test_what_the_page_says_holds(recorded):
    def like(column="value", **where):
        return mean_of(recorded, column, measure=PSNR, **where)

    for setting in inverted_updates.SETTINGS[:2]:
        nothing = like("nothing", setting=setting.name, defence="none")
        for level in ("client", "example"):
            for noise in ("0.1", "1"):
                assert like(setting=setting.name, defence=f"`{level}-at-client`, noise {noise}") < nothing
        for name in ("none", "`compress.client=int8`"):
            assert like(setting=setting.name, defence=name) > nothing + 3


def test_the_page_is_short_and_has_no_full_cells():
    text = PAGE.read_text()
    prose = re.sub(r"^\|[^\n]*$|^```[^`]*^```$", "", text, flags=re.M)
    assert len(prose.split()) <= 700
    cells = [cell for line in re.findall(r"^\|(.*)\|$", text, re.M) for cell in line.split("|")]
    assert [cell for cell in cells if len(re.findall(r"\.\s", cell)) > 1] == []
