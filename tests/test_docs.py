"""What the docs say about the code is complete, and their links lead somewhere."""

import ast
import json
import re
import runpy
from pathlib import Path

import pytest
from flwr.app import ArrayRecord

from espalier.app.config.keys import FIELD_OF, SECTIONS
from espalier.app.config.run_config import RunConfig
from espalier.clients.device import gateway
from espalier.clients.messages import edge, frames, profile, secure, split_names, train
from espalier.clients.messages.split import LabelTerms
from espalier.clients.messages.split_local import SplitLocal
from espalier.clients.split import registered_labels, sessions, stream
from espalier.version import __version__
from tests.test_imports import FOLDERS, LAYERS

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]


def test_every_message_type_and_key_is_in_the_table_of_messages():
    modules = (edge, frames, gateway, profile, registered_labels, secure, sessions, split_names, stream, train)
    spelled = [(name, value) for module in modules for name, value in vars(module).items()]
    names = {value for name, value in spelled if name.isupper() and isinstance(value, str)}
    names -= {value for value in vars(sessions).values() if isinstance(value, str) and value.startswith(sessions.STATE)}
    names -= {sessions.AWAITS_FEATURES, sessions.LOSS_SUM}  # of a node's state
    names |= {profile.key_of(field) for field in profile.DeviceProfile.__dataclass_fields__}
    assert names >= {"query.profile", "cpu-count", "train.split_end", "link", "edge-folder", "stream-token"}
    text = (ROOT / "docs/messages.md").read_text()
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_the_row_of_split_local_has_the_records_of_its_instruction_with_a_head_and_no_other():
    text = (ROOT / "docs/messages.md").read_text()
    row, begin = (
        re.search(rf"^\| `train.{kind}` \| (.*?) \|", text, re.M)[1] for kind in ("split_local", "split_begin")
    )
    told = SplitLocal(ArrayRecord(), 1, 1, LabelTerms("kept"), frozen_head=True, sent=ArrayRecord()).to_content()
    assert [name for name in told if f"`{name}`" not in begin + row] == []
    assert f"`{split_names.AUXILIARY_HEAD}`" not in row


def test_the_page_on_the_code_has_the_layers_of_the_app_as_the_walls_do():
    text = (ROOT / "docs/architecture.md").read_text()
    (picture,) = re.findall(r"^┌─ app/ ─+┐\n(.*?)^└", text, re.M | re.S)
    bands = [re.split(" {2,}", line.strip("│ "))[1:] for line in picture.splitlines()]  # the first word is the band's
    assert tuple(layer for band in reversed(bands) for layer in band) == LAYERS
    tops, layers = text.split("Of `app/`, from its floor up:\n")
    assert tuple(re.findall(r"`(\w+)`", layers.partition("\n## ")[0])) == LAYERS
    named = re.findall(r"^\| `(\w+)/` \|", tops, re.M)
    assert set(named) > set(FOLDERS)
    assert [name for name in named if not (ROOT / name).is_dir()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_programs_of_the_repository_are_called_as_they_can_be_found(page):
    text = page.read_text()
    for folder, name in re.findall(r"python -m (experiments|benchmarks)\.(\w+)", text):
        assert (ROOT / folder / f"{name}.py").exists()
    for script in re.findall(r"python ((?:experiments|benchmarks|deploy|examples)/[\w/-]+\.py)", text):
        # A script finds what lies beside it, and the installed package.
        assert not re.search(r"^(from|import) (experiments|benchmarks)\b", (ROOT / script).read_text(), re.MULTILINE)


def test_the_program_of_the_theory_page_counts_sgd_steps_in_theorem_1(capsys):
    exec(programs_of("theory")[0], {})
    split, whole, limit, bound = capsys.readouterr().out.splitlines()
    assert split == f"split, bits: {5 * 5 * (2 * 32 * 4096 * 33 + 32 * 10) + 2 * 1792 * 33}"
    assert whole == f"whole model, bits: {2 * 209_546 * 33}"
    assert float(limit.removeprefix("eta < ")) == pytest.approx(1 / (2 * 5**0.5 * 3 * 25))
    terms = ast.literal_eval(bound)
    eta = 0.1 / (2 * 5**0.5 * 3 * 25)
    assert terms["loss"] == pytest.approx(2 * (2.3 - 0.8) / (eta * 100 * 3 * 25))
    assert terms["user_es"] == pytest.approx(12 * (eta * 25) ** 2 * (1 + 20 * (25 * 3 * eta) ** 2) * 0.1)
    assert min(1 - 12 * (eta * 25) ** 2, 1 - 20 * (eta * 3 * 25) ** 2) == pytest.approx(0.99)
    assert f"The limit on eta is {float(limit.removeprefix('eta < ')):.5f} for beta = 1" in page_of("theory")


def test_the_second_program_of_the_theory_page_says_what_is_below_it(capsys):
    exec(programs_of("theory")[1], {})
    rates, dominating, bound = capsys.readouterr().out.splitlines()
    best, limit, proved = map(float, re.findall(r"0\.\d+", rates))
    assert best == pytest.approx((1.5 * 48 / (4 * 100 * 50)) ** 0.5, abs=1e-4)
    assert (limit, proved) == pytest.approx((1 / (2 * 5**0.5 * 50), 1 / (2 * 5**0.5 * 4 * 50)), abs=1e-4)
    assert best > limit
    terms = ast.literal_eval(bound)
    eta = 0.1 / (2 * 5**0.5 * 4 * 50)
    assert terms["loss"] == pytest.approx(2 * 1.5 / (eta * 4 * 100 * 50))
    assert terms["loss"] < float(dominating.removeprefix("eq. 27: ")) < terms["bound"]
    assert min(1 - 18 * (eta * 50) ** 2, 1 - 20 * (eta * 4 * 50) ** 2) == pytest.approx(0.99)
    at_the_limit = 1 - 20 * (4 * 50 / (2 * 5**0.5 * 50)) ** 2
    assert f"the second divisor is {at_the_limit:.0f} with E = 4" in page_of("theory")


def page_of(name):
    """Return a page's text in one line."""
    return " ".join((ROOT / f"docs/{name}.md").read_text().split())


def programs_of(page):
    """Return what a page gives to Python's standard input."""
    return re.findall(r"^python - <<'END'\n(.*?)^END$", (ROOT / f"docs/{page}.md").read_text(), re.M | re.S)


def test_the_script_of_the_in_process_page_prints_what_the_page_says(capsys):
    page = (ROOT / "docs/in-process.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    (printed,) = re.findall(r"^```\n(round 1.*?)^```$", page, re.M | re.S)
    exec(program, {})
    assert capsys.readouterr().out == printed


def test_the_tables_of_settings_and_the_settings_of_projects_are_up_to_date():
    makes = runpy.run_path(str(ROOT / "docs/settings_tables.py"))
    for path, text in makes["made"]():
        assert path.read_text() == text, f"{path} is not what the settings say: type make docs-settings"
    page = makes["PAGE"].read_text()
    rows = re.findall(r"^\| `([^|`]+)` \| `([^|]*)` \| .+\. \|$", page, re.MULTILINE)
    assert {key: json.loads(default) for key, default in rows} == RunConfig().as_dict()
    assert makes["page_with_tables"](page.replace("| `seed` | `0` |", "| `seed` | `1` |")) == page


def test_what_is_said_of_a_setting_has_two_sentences_at_most():
    said = {key: SECTIONS[section].meanings()[field] for key, (section, field) in FIELD_OF.items()}
    ends = re.compile(r"(?<!eq)\.\s+(?=\S)")
    assert {key: text for key, text in said.items() if len(ends.findall(text.strip())) > 1} == {}


def test_the_list_of_changes_ends_at_this_edition_and_names_settings_that_there_are():
    unreleased, newest, *_ = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[1:]
    assert (unreleased.split()[0], newest.split()[0]) == ("Unreleased", __version__)
    settings = RunConfig().as_dict()
    named = set(re.findall(r"`([a-z]+\.[a-z-]+)`", unreleased)) - {"espalier.strategies"}
    assert named <= settings.keys()
    assert {settings["guard.update-norm"], settings["guard.activation-norm"]} == {0}
    assert {settings[f"split.server-{name}"] for name in ("optimizer", "momentum", "weight-decay")} == {"as-clients"}
