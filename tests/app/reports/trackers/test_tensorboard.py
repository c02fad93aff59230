"""What TensorBoard's own reader finds of a run."""

import pytest

from tests.app.reports.trackers.runs import SETTINGS, a_failure, expected, tracked
from tests.app.runs import run_app

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def read(folder):
    found = EventAccumulator(str(folder), size_guidance={"tensors": 0, "images": 0, "scalars": 0})
    found.Reload()
    return found


def text_at(found, tag, step):
    (event,) = [event for event in found.Tensors(f"{tag}/text_summary") if event.step == step]
    return event.tensor_proto.string_val[0].decode()


@pytest.mark.usefixtures("with_blank_pictures")
def test_it_has_all_figures_texts_and_pictures_and_a_resumed_run_goes_on(tmp_path):
    folder = tracked(tmp_path / "run", f"tensorboard(folder='{tmp_path}/board')", report_group="night")
    found = read(tmp_path / "board/night/run")
    for name, values in expected(folder).items():
        events = found.Scalars(name)
        assert [event.step for event in events] == [1, 2, 3], name
        assert [event.value for event in events] == pytest.approx(values, rel=1e-6), name
    assert "| num-clients | `4` |" in text_at(found, "settings", 0)
    number, text = a_failure(folder)
    assert text in text_at(found, "failures", number)
    assert set(found.Tags()["images"]) >= {"rounds", "costs"}
    assert not (folder / "tensorboard").exists()


def test_a_round_that_is_made_again_is_there_once(tmp_path):
    settings = {"num_clients": 2, "batches_per_epoch": 1, "report_tracker": "tensorboard"}
    folder = run_app(tmp_path / "run", global_rounds=2, **settings)
    kept = (folder / "state.npz").read_bytes()
    run_app(folder, resume=str(folder), output_dir="", global_rounds=3, **settings)
    (folder / "state.npz").write_bytes(kept)  # as if the power had failed before round 3 was saved
    run_app(folder, resume=str(folder), output_dir="", global_rounds=4, **settings)
    assert [event.step for event in read(folder / "tensorboard").Scalars("loss/mean")] == [1, 2, 3, 4]


def test_a_first_round_that_is_made_again_is_there_once(tmp_path):
    settings = {"num_clients": 2, "batches_per_epoch": 1, "report_tracker": "tensorboard"}
    folder = run_app(tmp_path / "run", global_rounds=1, **settings)
    assert [event.step for event in read(folder / "tensorboard").Scalars("loss/mean")] == [1]
    (folder / "state.npz").unlink()  # as if the power had failed before round 1 was saved
    run_app(folder, resume=str(folder), output_dir="", global_rounds=2, **settings)
    assert [event.step for event in read(folder / "tensorboard").Scalars("loss/mean")] == [1, 2]


def test_a_disk_that_is_full_ends_no_run(tmp_path, caplog, monkeypatch):
    from espalier.app.reports.trackers.tensorboard import SummaryWriter

    def full(self, *what):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SummaryWriter, "add_scalar", full)
    run_app(tmp_path / "run", report_tracker="tensorboard", **SETTINGS)
    said = [record.getMessage() for record in caplog.records if "report.tracker" in record.getMessage()]
    reason = "OSError: [Errno 28] No space left on device"
    assert said == [f"report.tracker = 'tensorboard' failed in round 1, the run goes on: {reason}"]
