"""What a power cut leaves of a folder: operations are recorded, and replayed without what was not synced."""

import builtins
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISDIR

import pytest

Image = dict[str, bytes]  # content by path


@dataclass
class Recorder:
    """Records what this process does below a folder with Python's files, and with `os`.

    Operations are tuples: a name, then paths relative to the folder, and numbers of files, which keep theirs when they
    are renamed.
    """

    root: Path
    operations: list[tuple] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)  # by inode
    _folders: dict[int, str] = field(default_factory=dict)

    def record(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Record from now on."""
        self._folders[self.root.stat().st_ino] = "."
        real_open, real_fsync = io.open, os.fsync

        def open_(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, **options):
            if not (set(mode) & set("wxa+") and self._is_here(file)):
                return real_open(file, mode, buffering, encoding, errors, newline, **options)
            writer = io.BufferedWriter(RecordedFile(self, file, mode.strip("bt")))
            return writer if "b" in mode else io.TextIOWrapper(writer, encoding, errors, newline)

        def fsync(descriptor):
            real_fsync(descriptor)
            status = os.fstat(descriptor)
            if S_ISDIR(status.st_mode) and status.st_ino in self._folders:
                self.operations.append(("sync folder", self._folders[status.st_ino]))
            elif status.st_ino in self._numbers:
                self.operations.append(("sync", self._numbers[status.st_ino]))

        monkeypatch.setattr(builtins, "open", open_)
        monkeypatch.setattr(io, "open", open_)
        monkeypatch.setattr(os, "fsync", fsync)
        for name in ("rename", "replace", "unlink", "remove", "mkdir"):
            monkeypatch.setattr(os, name, self._recorded(name, getattr(os, name)))

    def created(self, file: os.PathLike[str] | str) -> int:
        """Give a new file a number."""
        number = len(self.operations)
        self._numbers[os.stat(file).st_ino] = number
        self.operations.append(("create", self._name(file), number))
        return number

    def number(self, file: os.PathLike[str] | str) -> int:
        """Return the number of a file."""
        return self._numbers[os.stat(file).st_ino]

    def _recorded(self, name, function):
        def call(*paths, **options):
            function(*paths, **options)
            if self._is_here(paths[0]):
                if name == "mkdir":
                    self._folders[os.stat(paths[0]).st_ino] = self._name(paths[0])
                self.operations.append((name, *(self._name(p) for p in paths if isinstance(p, str | os.PathLike))))

        return call

    def _is_here(self, file) -> bool:
        if not isinstance(file, str | os.PathLike):
            return False
        path = Path(file)
        return path.is_relative_to(self.root) and path.name != "lock"  # whose content nobody depends on

    def _name(self, file) -> str:
        return str(Path(file).relative_to(self.root))


class RecordedFile(io.FileIO):
    """A file whose writes are recorded, as the system gets them."""

    def __init__(self, recorder: Recorder, file, mode: str) -> None:
        is_new = not os.path.exists(file)
        super().__init__(file, mode)
        self._recorder = recorder
        self._number = recorder.created(file) if is_new else recorder.number(file)
        if "w" in mode and not is_new:
            recorder.operations.append(("truncate", self._number))

    def write(self, data) -> int:
        at = os.fstat(self.fileno()).st_size if "a" in self.mode else self.tell()
        written = super().write(data)
        self._recorder.operations.append(("write", self._number, at, bytes(data[:written])))
        return written


@dataclass
class Disk:
    """What recorded operations have come to, and what of it a power cut can leave."""

    names: dict[str, int | None] = field(default_factory=lambda: {".": None})  # None is a folder
    synced_names: dict[str, int | None] = field(default_factory=lambda: {".": None})
    contents: dict[int, bytes] = field(default_factory=dict)
    synced_contents: dict[int, bytes] = field(default_factory=dict)

    def do(self, operation: str, *what) -> None:
        """Carry out an operation."""
        if operation == "create":
            self.names[what[0]] = what[1]
            self.contents[what[1]] = self.synced_contents[what[1]] = b""
        elif operation == "mkdir":
            self.names[what[0]] = None
        elif operation == "write":
            number, at, data = what
            before = self.contents[number].ljust(at, b"\0")
            self.contents[number] = before[:at] + data + before[at + len(data) :]
        elif operation == "truncate":
            self.contents[what[0]] = b""
        elif operation == "sync":
            self.synced_contents[what[0]] = self.contents[what[0]]
        elif operation in ("rename", "replace"):
            self.names[what[1]] = self.names.pop(what[0])
        elif operation in ("unlink", "remove"):
            self.names.pop(what[0], None)
        elif operation == "sync folder":
            everything = {*self.names, *self.synced_names}
            for name in (n for n in everything if os.path.dirname(n) == what[0].removeprefix(".")):
                self.synced_names.pop(name, None)
                if name in self.names:
                    self.synced_names[name] = self.names[name]

    def images(self) -> Iterator[Image]:
        """Yield what a power cut can leave.

        Of a file's content, what was not synced is not there, or zeros, or half of it, or all. Of the names in a
        folder, none that were not synced are there, or all, or all but one.
        """
        changed = [n for n in {*self.names, *self.synced_names} if self.names.get(n) != self.synced_names.get(n)]
        for there in (self.synced_names, self.names, *map(self._all_names_but, sorted(changed))):
            for damage in (lost, zeroed, torn, kept):
                yield {
                    name: damage(self.synced_contents[number], self.contents[number])
                    for name, number in there.items()
                    if number is not None and all(str(folder) in there for folder in Path(name).parents)
                }

    def _all_names_but(self, name: str) -> dict[str, int | None]:
        others = {n: number for n, number in self.names.items() if n != name}
        return others | ({name: self.synced_names[name]} if name in self.synced_names else {})


def images_after_power_cuts(operations: list[tuple]) -> Iterator[Image]:
    """Yield what power cuts can leave, one before the first operation and one after each; the same image once."""
    disk, seen = Disk(), set()
    for operation in [None, *operations]:
        if operation:
            disk.do(*operation)
        for image in disk.images():
            # Nobody reads what is still being written.
            key = frozenset((name, b"" if name.endswith(".part") else data) for name, data in image.items())
            if key not in seen:
                seen.add(key)
                yield image


def lost(before: bytes, after: bytes) -> bytes:
    return before


def zeroed(before: bytes, after: bytes) -> bytes:
    return before.ljust(len(after), b"\0")


def torn(before: bytes, after: bytes) -> bytes:
    return after[: (len(before) + len(after)) // 2]


def kept(before: bytes, after: bytes) -> bytes:
    return after
