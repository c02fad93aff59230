"""Rows of runs are read back as they were written, and an interrupted write leaves the file of before."""

import pytest

from espalier.app.ground.errors import UserError
from experiments.records import append_rows, completed, read_rows, run_script, write_rows

COLUMNS = {"row": str, "seed": int, "accuracy": float}
A, B = {"row": "V2, cut 1", "seed": 0, "accuracy": 0.125}, {"row": "V1", "seed": 2, "accuracy": 0.1 + 0.2}


def test_rows_are_read_back(tmp_path):
    path = tmp_path / "runs.csv"
    assert read_rows(path, COLUMNS) == []
    append_rows(path, COLUMNS, [A])
    append_rows(path, COLUMNS, [B])
    assert read_rows(path, COLUMNS) == [A, B]
    assert path.read_text() == 'row,seed,accuracy\n"V2, cut 1",0,0.125\nV1,2,0.30000000000000004\n'
    write_rows(path, COLUMNS, [B])
    assert read_rows(path, COLUMNS) == [B]


def test_rows_are_made_of_the_cases_that_have_none(tmp_path):
    path, made = tmp_path / "runs.csv", []

    def rows_of(seed):
        made.append(seed)
        return [row for row in (A, B) if row["seed"] == seed]

    append_rows(path, COLUMNS, [B])
    assert [completed(path, COLUMNS, (0, 2), lambda row: row["seed"], rows_of) for _ in range(2)] == [[B, A]] * 2
    assert read_rows(path, COLUMNS) == [B, A]
    assert completed(None, COLUMNS, [0], lambda row: row["seed"], rows_of) == [A]
    assert made == [0, 0]


def test_what_is_interrupted_leaves_the_file_of_before(tmp_path):
    path = tmp_path / "runs.csv"
    write_rows(path, COLUMNS, [A])

    def interrupted():
        yield B
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rows(path, COLUMNS, interrupted())
    assert read_rows(path, COLUMNS) == [A]
    write_rows(path, COLUMNS, [A, B])
    assert read_rows(path, COLUMNS) == [A, B]


OTHERS = [
    *("a,b\n1,2\n", "row,seed\nV1,1\n", "\xff\n"),
    *(
        "row,seed,accuracy\nV1,x,0.5\n",
        "row,seed,accuracy\nV1,1\n",
        "seed,accuracy,row\n1,0.5\n",
        "seed,accuracy,row\n1,0.5,V1,2\n",
        "row,seed,accuracy\nV1,2,0.5",
        "row,seed,accuracy,row\nV1,2,0.5,V2\n",
    ),
]


@pytest.mark.parametrize("text", OTHERS)
def test_another_kind_of_file_is_named(tmp_path, text):
    (tmp_path / "runs.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=r"runs.csv: is damaged, or of another kind; .* row, seed, accuracy"):
        read_rows(tmp_path / "runs.csv", COLUMNS)


def test_an_empty_file_is_begun(tmp_path):
    path = tmp_path / "runs.csv"
    path.touch()
    assert read_rows(path, COLUMNS) == []
    append_rows(path, COLUMNS, [A])
    assert read_rows(path, COLUMNS) == [A]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (UserError("alpha = 'x': allowed is a number"), "error: alpha = 'x': allowed is a number"),
        (PermissionError(13, "Permission denied", "f.csv"), "error: f.csv: Permission denied"),
    ],
)
def test_a_mistake_of_the_users_is_one_line(fault, said):
    def main():
        raise fault

    with pytest.raises(SystemExit) as ended:
        run_script(main)
    assert ended.value.code == said
