"""What should be a file and is a named pipe, a device or a link holds up nobody, and nobody writes there."""

import os
import shutil
import signal
import tracemalloc

import pytest

from espalier.app.command_line import main
from espalier.app.comparison.command import finished_runs
from espalier.app.ground import regular_files
from espalier.app.ground.durable import append_text
from espalier.app.reports.folder import ResultsFolder
from espalier.app.reports.owner import own
from espalier.app.sweeps.grid import planned_runs, read_sweep
from espalier.app.sweeps.workers import Child
from tests.app.runs import run_app

SMALL = {"num_clients": 2, "edge_rounds": 1, "local_epochs": 1, "batches_per_epoch": 1, "global_rounds": 1}
NO_FILES = {"pipe": os.mkfifo, "device": lambda path: path.symlink_to(os.devnull)}


@pytest.fixture(autouse=True)
def _in_time():
    """Fail where somebody waits for a pipe."""

    def late(*_):
        pytest.fail("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return run_app(tmp_path_factory.mktemp("made") / "run", **SMALL)


@pytest.fixture(params=NO_FILES)
def put(request, tmp_path):
    """Return what puts something that is no file in the place of one."""

    def put(path):
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        NO_FILES[request.param](path)
        return path

    return put


@pytest.mark.parametrize("name", ["summary.json", "config.json", "metrics.jsonl", "made-by.json", "round-0.json"])
def test_compare_leaves_out_a_run_with_what_is_no_file_in_it(name, put, made, tmp_path, capsys):
    for run in ("bad", "good"):
        shutil.copytree(made, tmp_path / "runs" / run)
    put(tmp_path / "runs" / "bad" / name)
    put(tmp_path / "runs" / "runs.csv")
    assert [run.folder.name for run in finished_runs([tmp_path / "runs"])] == ["good"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("left out: ")
    assert "(is no file)" in line
    assert str(tmp_path / "runs" / "bad") in line


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "state.npz", "made-by.json", "world.json"])
def test_a_run_does_not_go_on_with_what_is_no_file(name, put, made, tmp_path, capsys):
    folder = shutil.copytree(made, tmp_path / "run")
    put(folder / name)
    capsys.readouterr()
    assert main([f"resume={folder}", "global-rounds=2"]) == (0 if name == "world.json" else 2)  # which it has not
    assert ("(is no file)" in capsys.readouterr().err) == (name != "world.json")


def test_a_sweep_is_refused_where_its_table_is_no_file_and_a_run_where_its_log_is_none(put, tmp_path, capsys):
    given = [f"{key.replace('_', '-')}={value}" for key, value in SMALL.items()]
    table = put(tmp_path / "runs.csv")
    assert main(["sweep", *given, f"output-dir={tmp_path}"]) == 2
    assert (
        capsys.readouterr().err == f"error: {table}: can't be read; allowed is the table that a sweep wrote, or none\n"
    )
    table.unlink()
    log = put(tmp_path / "logs" / "seed-0.log")
    assert main(["sweep", *given, f"output-dir={tmp_path}"]) == 2
    assert capsys.readouterr().err == f"error: {log}: can't be written (is no file)\n"
    (run,) = planned_runs(read_sweep(given))
    put(tmp_path / "seed-0" / "metrics.jsonl")
    assert Child(run, tmp_path / "seed-0", None, log).rounds() == 0


def test_a_lock_that_is_no_file_is_not_written_to(put, tmp_path):
    put(tmp_path / "lock")
    with pytest.raises(OSError, match=r"is no file|Too many levels"):
        own(tmp_path, "output-dir")


@pytest.mark.usefixtures("with_blank_pictures")
@pytest.mark.parametrize(
    "name", ["state.npz.part", "config.json.part", "metrics.jsonl", "rounds.png", "bytes.png.part"]
)
def test_no_link_in_a_folder_is_followed_to_write(name, made, tmp_path):
    folder, victim = shutil.copytree(made, tmp_path / "run"), tmp_path / "victim"
    victim.write_bytes((made / name).read_bytes() if (made / name).exists() else b"mine")
    before = victim.read_bytes()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    assert main([f"resume={folder}", "global-rounds=2", f"report.plots={str('png' in name).lower()}"]) == 0
    assert victim.read_bytes() == before
    assert not (folder / name).is_symlink()
    assert len(ResultsFolder(folder).read_metrics()) == 6


def test_lines_are_not_appended_through_a_link(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "lines").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="is no file"):
        append_text(tmp_path / "lines", "more")
    assert (tmp_path / "victim").read_text() == "mine"


def test_a_text_without_end_is_not_read(tmp_path):
    (tmp_path / "long").write_bytes(b"0" * 11)
    with pytest.raises(OSError, match="has 11 bytes, of 10 at most"):
        regular_files.read_text(tmp_path / "long", 10)


def test_a_short_text_takes_no_memory_for_the_longest(tmp_path):
    (tmp_path / "short").write_text("mine")
    tracemalloc.start()
    try:
        assert regular_files.read_text(tmp_path / "short") == "mine"
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
