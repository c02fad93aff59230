"""Installs what ``make dist`` has built into an empty environment for each Python that is here, and tries it there."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PLAN = """
from importlib.metadata import version
from espalier.strategies.allocation import get_solver
import espalier
assert version("espalier-fl") == espalier.__version__
get_solver("exact")
print(espalier.__version__)
"""


def found(version: str) -> str | None:
    """Return the interpreter of a version; None where there is none that starts."""
    path = shutil.which(f"python{version}")
    works = path and subprocess.run([path, "-c", "import venv"], capture_output=True, check=False).returncode == 0
    return path if works else None


def main(folder: Path) -> None:
    """Try each file in `folder` on each Python; CalledProcessError where one can't be installed or used."""
    files = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    assert len(files) == 2, f"{folder}: a wheel and a source distribution, not {files}"
    for version in VERSIONS:
        python = found(version)
        if python is None:
            print(f"Python {version}: is not here")
            continue
        with tempfile.TemporaryDirectory() as place:
            subprocess.run([python, "-m", "venv", place], check=True)
            own = f"{place}/bin/python"
            for file in files:
                pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--force-reinstall"]
                again = ["--no-deps"] if file != files[0] else []
                subprocess.run([*pip, *again, file.resolve()], check=True, cwd=place)
                done = subprocess.run([own, "-c", PLAN], check=True, cwd=place, capture_output=True, text=True)
                print(f"Python {version}: {file.name} is installed, version {done.stdout.strip()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
