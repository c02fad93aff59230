import logging
import os
import zlib

import numpy as np
import pytest
from PIL import Image

from espalier.app.ground.errors import UserError
from espalier.app.tasks import image_folder
from espalier.app.tasks.image_folder import decode_image, decode_images, list_images, list_pool

NOISE = np.random.default_rng(0).integers(0, 256, (12, 8, 3), dtype=np.uint8)


def put(file, pixels=NOISE, **options):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file, **options)
    return file


@pytest.fixture
def root(tmp_path):
    for file in ("train/b/2.png", "train/b/1.bmp", "train/a/x.PNG", "train/c/y.webp", "test/c/y.jpeg", "test/a/z.JPG"):
        put(tmp_path / file)
    return tmp_path


def test_a_class_whose_name_no_file_can_hold_is_refused_in_one_line(root):
    os.mkdir(os.fsencode(root / "train") + b"/\xff")
    with pytest.raises(UserError, match=r"train: allowed are class folders whose names are UTF-8, not '\\udcff'"):
        list_images(root)


def test_classes_and_files_are_sorted_by_name(root):
    put(root / "train/.hidden/x.png")
    put(root / "train/a/._x.png")
    (root / "train/a/notes.txt").write_text("no image")
    (root / "train/list.csv").write_text("no class")
    listing = list_images(root)
    assert listing.classes == ("a", "b", "c")
    assert [str(file.relative_to(root)) for file in listing.train] == [
        "train/a/x.PNG",
        "train/b/1.bmp",
        "train/b/2.png",
        "train/c/y.webp",
    ]
    assert listing.train_labels.tolist() == [0, 1, 1, 2]
    assert [file.name for file in listing.test] == ["z.JPG", "y.jpeg"]
    assert listing.test_labels.tolist() == [0, 2]


def remove(folder):
    for file in sorted(folder.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    folder.rmdir()


def test_folders_that_are_missing_or_empty_are_named(root):
    def error():
        with pytest.raises(UserError) as caught:
            list_images(root)
        return str(caught.value)

    layout = "allowed is a folder with train/<class>/* and test/<class>/*"
    (root / "test/d").mkdir()
    assert error() == f"{root}/test/d: class 'd' has no folder in {root}/train"
    (root / "train/d").mkdir()
    assert error() == (
        f"{root}/train/d: holds no images: allowed are files named *.png, *.jpg, *.jpeg, *.bmp, *.webp, *.tif, *.tiff"
    )
    put(root / "train/d/x.png")
    assert error().startswith(f"{root}/test/d: holds no images")
    remove(root / "test")
    assert error() == f"{root}/test: no such folder: {layout}, or with <class>/* alone"
    (root / "test").mkdir()
    assert error() == f"{root}/test: holds no class folders: {layout}"
    remove(root / "train")
    assert error() == f"{root}/train: no such folder: {layout}, or with <class>/* alone"
    (root / "train").mkdir()
    assert error() == f"{root}/train: holds no class folders: {layout}"
    remove(root)
    assert error() == f"{root}: no such folder: {layout}, or with <class>/* alone"


def test_lossless_formats_keep_every_pixel(tmp_path):
    for name in ("a.png", "a.bmp"):
        assert np.array_equal(decode_image(put(tmp_path / name), 0), NOISE)
    assert np.array_equal(decode_image(put(tmp_path / "a.webp", lossless=True), 0), NOISE)


def test_every_image_becomes_rgb(tmp_path):
    grey = decode_image(put(tmp_path / "grey.png", NOISE[..., 0]), 0)
    assert np.array_equal(grey, np.repeat(NOISE[..., :1], 3, axis=2))
    clear = np.dstack([NOISE, NOISE[..., 0]])
    assert np.array_equal(decode_image(put(tmp_path / "clear.png", clear), 0), NOISE)


def test_resizing_is_to_a_square(tmp_path):
    file = put(tmp_path / "a.png", np.full((12, 8, 3), (10, 20, 30), dtype=np.uint8))
    image = decode_image(file, 16)
    assert image.shape == (16, 16, 3)
    assert np.array_equal(np.unique(image.reshape(-1, 3), axis=0), [[10, 20, 30]])


@pytest.mark.parametrize("suffix", image_folder.SUFFIXES)
def test_a_file_that_is_cut_short_is_named(tmp_path, suffix):
    file = put(tmp_path / f"cut{suffix}")
    content = file.read_bytes()
    for length in (0, 10, len(content) // 2, len(content) * 3 // 4):
        file.write_bytes(content[:length])
        with pytest.raises(UserError) as caught:
            decode_image(file, 0)
        assert str(caught.value).startswith(f"{file}: cannot be read as an image (")
        assert "\n" not in str(caught.value)


def test_a_file_that_is_no_image_is_named(tmp_path):
    file = tmp_path / "text.png"
    file.write_text("no image")
    with pytest.raises(UserError, match=r"text\.png: cannot be read as an image"):
        decode_image(file, 0)


def test_sixteen_bits_per_channel_are_refused_rather_than_clipped(tmp_path):
    file = put(tmp_path / "deep.png", NOISE[..., 0].astype(np.uint16) * 256)
    with pytest.raises(UserError, match=r"deep\.png: has pixels of mode I;16: allowed are images of 8 bits"):
        decode_image(file, 0)


@pytest.mark.parametrize(("kind", "channels"), [(2, 3), (6, 4), (4, 2)])
def test_sixteen_bits_of_colours_are_refused_which_pillow_would_halve(tmp_path, kind, channels):
    def chunk(name, data):
        return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")

    header = (1).to_bytes(4, "big") * 2 + bytes([16, kind, 0, 0, 0])
    pixel = zlib.compress(bytes(1 + 2 * channels))
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", pixel), chunk(b"IEND", b""))
    file = tmp_path / "deep.png"
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    with pytest.raises(UserError, match=r"deep\.png: has pixels of mode .*;16.*: allowed are images of 8 bits"):
        decode_image(file, 0)


def test_sixteen_bits_of_a_pixel_are_eight_or_fewer_of_a_colour(tmp_path):
    file = tmp_path / "small.bmp"
    masks = b"".join(mask.to_bytes(4, "little") for mask in (0xF800, 0x07E0, 0x001F))
    sizes = [(40, 4), (1, 4), (1, 4), (1, 2), (16, 2), (3, 4), (4, 4), (0, 4), (0, 4), (0, 4), (0, 4)]
    header = b"".join(value.to_bytes(length, "little") for value, length in sizes) + masks
    start = 14 + len(header)
    about = b"BM" + (start + 4).to_bytes(4, "little") + bytes(4) + start.to_bytes(4, "little")
    file.write_bytes(about + header + b"\xff\xff\x00\x00")
    assert decode_image(file, 0).tolist() == [[[255, 255, 255]]]


def test_many_images_come_in_order(tmp_path):
    # more than one window of images decoded ahead
    files = [put(tmp_path / f"{i:03}.png", np.full((2, 3, 3), i % 256, dtype=np.uint8)) for i in range(600)]
    assert [int(image[0, 0, 0]) for image in decode_images(files, 0)] == [i % 256 for i in range(600)]


def test_the_first_image_of_another_size_is_named(tmp_path):
    files = [put(tmp_path / f"{i}.png") for i in range(3)]
    odd = put(tmp_path / "odd.png", NOISE[:10])
    with pytest.raises(UserError) as caught:
        list(decode_images([*files, odd, files[0]], 0))
    assert str(caught.value) == (
        f"{odd}: is 8x10, {files[0]} is 8x12 (width x height): set data.image-size to resize all images to one size"
    )
    assert {image.shape for image in decode_images([*files, odd], 6)} == {(6, 6, 3)}


def test_the_log_shows_progress(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, logger="espalier")
    monkeypatch.setattr(image_folder, "_PROGRESS_SECONDS", 0.0)
    file = put(tmp_path / "a.png")
    list(decode_images([file] * 300, 0))
    assert [record.getMessage().split(", about")[0] for record in caplog.records] == [
        "decoded 256 of 300 images",
        "decoded 300 of 300 images",
    ]


def test_tiff_files_are_read(root, tmp_path):
    put(root / "train/b/0.tif")
    put(root / "train/b/3.TIFF")
    listing = list_images(root)
    assert [file.name for file in listing.train] == ["x.PNG", "0.tif", "1.bmp", "2.png", "3.TIFF", "y.webp"]
    assert np.array_equal(decode_image(root / "train/b/0.tif", 0), NOISE)


def test_tiff_files_of_several_pages_are_named(tmp_path):
    file = put(tmp_path / "a.tif", save_all=True, append_images=[Image.fromarray(NOISE)])
    with pytest.raises(UserError) as caught:
        decode_image(file, 0)
    assert str(caught.value) == f"{file}: has 2 pages: allowed are images of one"


def test_what_is_left_out_of_a_pool_is_named_once(root, caplog):
    put(root / "train/b/4.png").rename(root / "train/b/4.jp2")
    put(root / "train/a/more/5.png")
    (root / "train/list.csv").write_text("no class")
    put(root / "train/a/.6.png")
    for _ in range(2):
        assert len(list_images(root).train) == 4
    lines = [record.getMessage() for record in caplog.records]
    allowed = f"{image_folder.FILES}, in the folder of a class"
    assert lines == [f"{root}/train: 3 entries are left out, such as a/more: {allowed}"]
    assert list_pool(root / "train", "abc")[1].tolist() == [0, 1, 1, 2]
    assert len(caplog.records) == 1
