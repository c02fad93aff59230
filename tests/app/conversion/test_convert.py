import csv
import os
import shutil
import signal
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from espalier.app.command_line import main
from espalier.app.conversion import command
from espalier.app.conversion.command import convert
from espalier.app.conversion.folder import place
from espalier.app.conversion.ham10000 import Photograph, images_to_test_on
from espalier.app.tasks.image_folder import decode_image, list_images
from tests.app.runs import run_app, summary

RNG = np.random.default_rng(0)


def picture(file: Path, width: int, height: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(file)


@pytest.fixture
def tiny(tmp_path):
    """Two classes as tiny-imagenet-200 has 200."""
    root = tmp_path / "tiny-imagenet-200"
    lines = []
    for label, name in enumerate(("n01443537", "n01629819")):
        for i in range(12):
            picture(root / "train" / name / "images" / f"{name}_{i}.JPEG", 8, 8)
        (root / "train" / name / f"{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t10\t63\t58\n")
        for i in range(4):
            picture(root / "val/images" / f"val_{2 * i + label}.JPEG", 8, 8)
            lines.append(f"val_{2 * i + label}.JPEG\t{name}\t0\t32\t44\t62\n")
    (root / "val/val_annotations.txt").write_text("".join(lines))
    picture(root / "test/images/test_0.JPEG", 8, 8)
    (root / "wnids.txt").write_text("n01443537\nn01629819\n")
    return root


LESIONS = [(f"HAM_{dx}_{i}", dx) for dx, count in (("nv", 20), ("mel", 10), ("df", 2)) for i in range(count)]


@pytest.fixture
def ham(tmp_path):
    """HAM10000 with 32 lesions, one to three images of each, in two folders."""
    root, rows = tmp_path / "ham", []
    for i, (lesion, dx) in enumerate(LESIONS):
        for view in range(1 + i % 3):
            image = f"ISIC_{24306 + 10 * i + view:07}"
            picture(root / f"HAM10000_images_part_{1 + i % 2}" / f"{image}.jpg", 12, 9)
            rows.append((lesion, image, dx, "histo", "80.0", "male", "scalp"))
    write_metadata(root, rows)
    return root


def write_metadata(root, rows, header=("lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization")):
    with (root / "HAM10000_metadata.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def read_metadata(root):
    with (root / "HAM10000_metadata.csv").open(newline="") as file:
        return [tuple(row) for row in csv.reader(file)][1:]


def lesions_by_pool(source, folder):
    listing, lesion_of = list_images(folder), {row[1]: row[0] for row in read_metadata(source)}
    return [{lesion_of[file.stem] for file in pool} for pool in (listing.train, listing.test)]


def error_of(capsys, *arguments):
    assert main(["convert", *map(str, arguments)]) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    return line.removeprefix("error: ").rstrip("\n")


def test_tiny_imagenet_becomes_an_image_folder_of_hard_links(tiny, tmp_path, capsys):
    folder = tmp_path / "new/converted"
    assert main(["convert", "tiny-imagenet", str(tiny), str(folder)]) == 0
    assert f"24 images to train on, 8 to test on, 2 classes: {folder}" in capsys.readouterr().out
    listing = list_images(folder)
    assert listing.classes == ("n01443537", "n01629819")
    assert np.bincount(listing.train_labels).tolist() == [12, 12]
    assert [file.name for file in listing.test] == [f"val_{i}.JPEG" for i in (0, 2, 4, 6, 1, 3, 5, 7)]
    assert listing.test_labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    for file in listing.test:
        assert os.path.samefile(file, tiny / "val/images" / file.name)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["converted"]


def test_copies_are_files_of_their_own(tiny, tmp_path):
    picture(tmp_path / "elsewhere.JPEG", 8, 8)
    (tiny / "val/images/val_0.JPEG").unlink()
    (tiny / "val/images/val_0.JPEG").symlink_to(tmp_path / "elsewhere.JPEG")
    for name, options in (("copied", ["--copy"]), ("linked", [])):
        assert main(["convert", "tiny-imagenet", str(tiny), str(tmp_path / name), *options]) == 0
        file = tmp_path / name / "test/n01443537/val_0.JPEG"
        assert not file.is_symlink()
        assert file.read_bytes() == (tmp_path / "elsewhere.JPEG").read_bytes()
    file = tmp_path / "copied/test/n01629819/val_1.JPEG"
    assert not os.path.samefile(file, tiny / "val/images/val_1.JPEG")
    assert file.read_bytes() == (tiny / "val/images/val_1.JPEG").read_bytes()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is one file system")
def test_on_another_file_system_files_are_copied(tiny, tmp_path):
    other = Path("/dev/shm") / f"espalier-convert-{os.getpid()}"
    if os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("there is one file system")
    try:
        assert main(["convert", "tiny-imagenet", str(tiny), str(other)]) == 0
        assert len(list_images(other).train) == 24
    finally:
        shutil.rmtree(other, ignore_errors=True)


def test_what_tiny_imagenet_lacks_is_one_line(tiny, tmp_path, capsys):
    def error():
        line = error_of(capsys, "tiny-imagenet", tiny, tmp_path / "converted")
        assert not (tmp_path / "converted").exists()
        return line

    expected = (
        "expected is the unpacked tiny-imagenet-200, with train/<class>/images/*, val/images/* and "
        "val/val_annotations.txt"
    )
    annotations, first = tiny / "val/val_annotations.txt", tiny / "val/images/val_0.JPEG"
    picture(tiny / "val/images/val_99.JPEG", 8, 8)
    assert error() == f"{tiny}/val/images/val_99.JPEG: {annotations} does not list it: {expected}"
    (tiny / "val/images/val_99.JPEG").unlink()
    first.unlink()
    assert error() == f"{first}: no such image, and {annotations} lists it: {expected}"
    annotations.write_text("val_0.JPEG\tn99\t0\t0\t1\t1\n")
    line = r"'val_0.JPEG\tn99\t0\t0\t1\t1'"
    assert error() == f"{annotations}, line 1: {line}: expected is an image's name, a tab, and a class of train"
    annotations.unlink()
    assert error().startswith(f"{annotations}: No such file or directory")
    for file in (tiny / "train/n01443537/images").iterdir():
        file.unlink()
    assert error() == f"{tiny}/train/n01443537/images: holds no images: {expected}"
    (tiny / "val").rename(tiny / "validation")
    assert error() == f"{tiny}/val/images: no such folder: {expected}"


def test_a_folder_with_something_in_it_is_refused(tiny, tmp_path, capsys):
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    assert error_of(capsys, "tiny-imagenet", tiny, folder) == f"{folder}: is not empty: expected is a new folder"
    assert error_of(capsys, "tiny-imagenet", tiny, folder / "notes.txt") == (
        f"{folder / 'notes.txt'}: is no folder: expected is a new one"
    )
    inside = tiny / "images"
    assert error_of(capsys, "tiny-imagenet", tiny, inside) == (
        f"{inside}: lies in {tiny}: expected is a folder outside of it"
    )
    (folder / "notes.txt").unlink()
    assert main(["convert", "tiny-imagenet", str(tiny), str(folder)]) == 0
    assert len(list_images(folder).train) == 24


def test_a_path_of_nobodys_home_is_one_line(tiny, capsys):
    allowed = "'~nosuch/x': allowed is a path; there is no home folder of that user"
    assert error_of(capsys, "tiny-imagenet", "~nosuch/x", tiny) == f"SRC = {allowed}"
    assert error_of(capsys, "tiny-imagenet", tiny, "~nosuch/x") == f"DEST = {allowed}"


def test_an_interrupted_conversion_leaves_nothing(tiny, tmp_path):
    def until_the_third(files, folder):
        for number, file in enumerate(place(files, folder, copy=False)):
            if number == 2:
                assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [folder.name]
                raise KeyboardInterrupt
            yield file

    files = {Path("train/a", file.name): file for file in (tiny / "val/images").iterdir()}
    with pytest.raises(KeyboardInterrupt):
        convert(files, tmp_path / "converted", until_the_third)
    assert [path.name for path in tmp_path.iterdir()] == [tiny.name]
    assert all(file.exists() for file in files.values())


def test_ham10000_has_no_lesion_in_both_pools_and_a_fifth_of_each_class_in_test(ham, tmp_path):
    folder = tmp_path / "converted"
    picture(ham / "HAM10000_images_part_1/ISIC_9999999.jpg", 12, 9)  # not in the metadata
    assert main(["convert", "ham10000", str(ham), str(folder)]) == 0
    train, test = lesions_by_pool(ham, folder)
    assert not train & test
    assert train | test == {lesion for lesion, _ in LESIONS}
    by_class = {dx: len([lesion for lesion in test if f"_{dx}_" in lesion]) for dx in ("nv", "mel", "df")}
    assert by_class == {"nv": 4, "mel": 2, "df": 1}
    listing = list_images(folder)
    assert listing.classes == ("df", "mel", "nv")
    assert len(listing.train) + len(listing.test) == len(read_metadata(ham))


def test_ham10000_by_image_divides_the_images(ham, tmp_path):
    folder = tmp_path / "converted"
    assert main(["convert", "ham10000", str(ham), str(folder), "--split", "image", "--size", "5"]) == 0
    listing, rows = list_images(folder), read_metadata(ham)
    counts = [[row[2] for row in rows].count(dx) for dx in listing.classes]
    assert np.bincount(listing.test_labels).tolist() == [round(0.2 * count) for count in counts]
    train, test = lesions_by_pool(ham, folder)
    assert train & test
    assert decode_image(listing.train[0], 0).shape == (5, 5, 3)


def test_ham10000s_pixels_are_those_that_a_run_makes_of_the_originals(ham, tmp_path):
    folder = tmp_path / "converted"
    assert main(["convert", "ham10000", str(ham), str(folder)]) == 0
    for file in list_images(folder).test:
        (original,) = ham.glob(f"*/{file.stem}.jpg")
        assert file.suffix == ".png"
        assert np.array_equal(decode_image(file, 0), decode_image(original, 64))


def test_the_seed_and_nothing_else_decides_what_is_tested_on():
    photographs = [Photograph(lesion, f"{lesion}_{view}", dx) for lesion, dx in LESIONS for view in range(2)]
    chosen = [images_to_test_on(photographs, "lesion", seed) for seed in range(20)]
    assert images_to_test_on(photographs[::-1], "lesion", 0) == chosen[0]
    assert len({frozenset(images) for images in chosen}) == 20
    assert {len(images) for images in chosen} == {2 * (4 + 2 + 1)}
    # Of two lesions one is tested on; of one none.
    assert len(images_to_test_on(photographs[-4:], "lesion", 0)) == 2
    assert images_to_test_on(photographs[-2:], "lesion", 0) == set()


def test_what_ham10000_lacks_is_one_line(ham, tmp_path, capsys):
    def error(*options):
        line = error_of(capsys, "ham10000", ham, tmp_path / "converted", *options)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["ham"]
        return line

    rows, metadata = read_metadata(ham), ham / "HAM10000_metadata.csv"
    expected = (
        "expected is a folder with HAM10000_metadata.csv, and the images <image_id>.jpg in it or in folders in it"
    )
    assert error("--size", "0") == "--size = 0: allowed is a number of pixels from 1 to 4096"
    (ham / "HAM10000_images_part_1/ISIC_0024306.jpg").write_bytes(b"cut short")
    assert error().startswith(f"{ham}/HAM10000_images_part_1/ISIC_0024306.jpg: cannot be read as an image")
    (ham / "HAM10000_images_part_1/ISIC_0024306.jpg").unlink()
    assert error() == (
        f"{ham}: has no ISIC_0024306.jpg; of the {len(rows)} images in HAM10000_metadata.csv 1 are missing: {expected}"
    )
    write_metadata(ham, [*rows, rows[4]])
    assert error() == f"{metadata}, image {len(rows) + 1}: {rows[4][1]} is listed twice: expected is once"
    write_metadata(ham, [rows[0], ("HAM_1", "ISIC_1", "cold")])
    assert error() == (
        f"{metadata}, image 2: lesion_id = 'HAM_1', image_id = 'ISIC_1', dx = 'cold': "
        "expected are two names, and as dx akiec, bcc, bkl, df, mel, nv, vasc"
    )
    write_metadata(ham, [], header=("lesion_id", "image_id"))
    assert error() == f"{metadata}: has no column dx: expected are lesion_id, image_id, dx"
    write_metadata(ham, [])
    assert error() == f"{metadata}: lists no images: {expected}"
    metadata.unlink()
    assert error().startswith(f"{metadata}: No such file or directory")


@pytest.mark.parametrize("dataset", ["tiny-imagenet", "ham10000"])
def test_a_run_reads_what_was_converted(dataset, tiny, ham, tmp_path):
    folder = tmp_path / "converted"
    options = {"tiny-imagenet": [tiny, folder], "ham10000": [ham, folder, "--size", "8"]}[dataset]
    assert main(["convert", dataset, *map(str, options)]) == 0
    settings = {"data_dir": str(folder), "num_clients": 2, "min_samples": 2, "partition": "iid", "model": "small-cnn"}
    run = run_app(
        tmp_path / "run", algorithm="sfl-v1", dataset="image-folder", cache_dir=str(tmp_path / "cache"), **settings
    )
    assert 0 <= summary(run)["test"]["accuracy"] <= 1


def test_ham10000s_photographs_are_converted_not_masks_or_small_copies_of_the_same_name(ham, tmp_path):
    plain, folder = tmp_path / "plain", tmp_path / "converted"
    assert main(["convert", "ham10000", str(ham), str(plain)]) == 0
    for file in sorted(ham.glob("HAM10000_images_part_*/*.jpg")):
        picture(ham / "A_masks" / f"{file.stem}.png", 12, 9)
        picture(ham / "A_small" / f"{file.stem}.jpg", 4, 3)
        (ham / "zip_again").mkdir(exist_ok=True)
        shutil.copyfile(file, ham / "zip_again" / file.name)
    assert main(["convert", "ham10000", str(ham), str(folder)]) == 0
    made = {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*.png")}
    assert made == {file.relative_to(plain): file.read_bytes() for file in plain.rglob("*.png")}


def test_two_photographs_of_one_name_are_named(ham, tmp_path, capsys):
    first = sorted(ham.glob("HAM10000_images_part_1/*.jpg"))[0]
    other = ham / "more" / first.name
    picture(other, 12, 9)
    assert error_of(capsys, "ham10000", ham, tmp_path / "converted") == (
        f"{other}: is another image than {first}, of the same size: expected is one photograph of a name"
    )


@pytest.mark.parametrize(("name", "delimiter"), [("HAM10000_metadata.tab", "\t"), ("HAM10000_metadata", ",")])
def test_ham10000s_metadata_may_be_as_the_source_offers_them(ham, tmp_path, name, delimiter):
    plain, folder, metadata = tmp_path / "plain", tmp_path / "converted", ham / "HAM10000_metadata.csv"
    assert main(["convert", "ham10000", str(ham), str(plain)]) == 0
    with metadata.open(newline="") as file:
        rows = list(csv.reader(file))
    metadata.unlink()
    with (ham / name).open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows(rows)
    assert main(["convert", "ham10000", str(ham), str(folder)]) == 0
    assert sorted(f.relative_to(folder) for f in folder.rglob("*.png")) == sorted(
        f.relative_to(plain) for f in plain.rglob("*.png")
    )


def test_a_pipe_in_the_place_of_a_list_is_no_file(ham, tiny, tmp_path, capsys):
    for dataset, root, name in (
        ("ham10000", ham, "HAM10000_metadata.csv"),
        ("tiny-imagenet", tiny, "val/val_annotations.txt"),
    ):
        (root / name).unlink()
        os.mkfifo(root / name)
        begin = f"{root / name}: is no file: expected"
        assert error_of(capsys, dataset, root, tmp_path / "converted").startswith(begin)
        (root / name).unlink()
        (root / name).symlink_to("/dev/zero")
        assert error_of(capsys, dataset, root, tmp_path / "converted").startswith(begin)


def test_a_list_that_is_much_too_long_is_not_read_and_a_long_line_is_shortened(ham, tiny, tmp_path, capsys):
    for dataset, file in (
        ("ham10000", ham / "HAM10000_metadata.csv"),
        ("tiny-imagenet", tiny / "val/val_annotations.txt"),
    ):
        with file.open("r+b") as opened:
            opened.truncate(200_000_000)
        line = error_of(capsys, dataset, file.parents[0 if dataset == "ham10000" else 1], tmp_path / "converted")
        assert line.startswith(f"{file}: has 200,000,000 bytes, of 16,000,000 at most: expected")
    (tiny / "val/val_annotations.txt").write_text("x" * 1_000_000)
    assert len(error_of(capsys, "tiny-imagenet", tiny, tmp_path / "converted")) < 1000
    write_metadata(ham, [("x" * 100_000, "y" * 100_000, "cold")])
    assert len(error_of(capsys, "ham10000", ham, tmp_path / "converted")) < 2000


@pytest.mark.parametrize("options", [[], ["--copy"]])
def test_a_link_to_what_is_no_image_is_not_followed_into_the_new_folder(tiny, tmp_path, capsys, options):
    (tmp_path / "secret").write_text("of another user")
    image = tiny / "val/images/val_0.JPEG"
    image.unlink()
    image.symlink_to(tmp_path / "secret")
    line = error_of(capsys, "tiny-imagenet", tiny, tmp_path / "converted", *options)
    assert line.startswith(f"{image}: cannot be read as an image")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret", tiny.name]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_conversion_that_is_told_to_end_leaves_nothing(tiny, tmp_path, monkeypatch, capsys, number):
    def place_and_be_told(files, folder, **options):
        for count, file in enumerate(place(files, folder, **options)):
            if count == 2:
                os.kill(os.getpid(), number)
            yield file

    monkeypatch.setattr(command, "place", place_and_be_told)
    before = signal.signal(number, signal.SIG_DFL)  # as a program has it; Ray leaves handlers of its own here
    try:
        assert main(["convert", "tiny-imagenet", str(tiny), str(tmp_path / "converted")]) == 130
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        if before is not None:  # else it is not Python's
            signal.signal(number, before)
    assert capsys.readouterr().err == f"interrupted: {tmp_path / 'converted'} was not made\n"
    assert [path.name for path in tmp_path.iterdir()] == [tiny.name]


def test_a_destination_of_other_letters_is_no_matter_of_the_terminal(tiny, tmp_path, monkeypatch):
    printed = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(printed, "ascii", line_buffering=True))
    assert main(["convert", "tiny-imagenet", str(tiny), str(tmp_path / "Ж")]) == 0
    assert printed.getvalue().endswith(b"2 classes: " + os.fsencode(tmp_path) + b"/\\u0416\n")
    monkeypatch.undo()
    assert len(list_images(tmp_path / "Ж").train) == 24
