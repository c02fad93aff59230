"""Runs the notebooks and writes into them what their cells print and draw: ``make notebooks``.

The cells of a notebook run in order in one namespace, as Jupyter runs them, and need neither Jupyter nor a kernel: they
print, and draw by pyplot, and their last lines have no value to show.
"""

import base64
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib

NOTEBOOKS = Path(__file__).parent.parent / "examples/notebooks"
DOTS_PER_INCH = 80

Notebook = dict[str, Any]


def executed(notebook: Notebook) -> Notebook:
    """Return a notebook with the outputs of its cells; what a cell raises goes on to the caller."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, number = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            code = compile("".join(cell["source"]), f"cell {number}", "exec")
            cell = cell | {"execution_count": number, "outputs": outputs_of(code, names)}
        cells.append(cell)
    return notebook | {"cells": cells}


def outputs_of(code: Any, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell and return what it prints and draws, as notebooks hold it."""
    from matplotlib import pyplot

    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(code, names)
    figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
    pictures = [{"image/png": png(figure), "text/plain": "a picture"} for figure in figures]
    pyplot.close("all")
    text = printed.getvalue().splitlines(keepends=True)
    return [{"name": "stdout", "output_type": "stream", "text": text}] * bool(text) + [
        {"data": picture, "metadata": {}, "output_type": "display_data"} for picture in pictures
    ]


def png(figure: Any) -> str:
    """Return a figure as a PNG file in letters."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return base64.b64encode(file.getvalue()).decode()


def read(path: Path) -> Notebook:
    """Return a notebook."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def main() -> None:
    """Run each notebook and write it."""
    matplotlib.use("Agg")
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        text = json.dumps(executed(read(path)), indent=1, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
