"""The files of a new project: its modules are those of `template`, and its settings are listed from the app's."""

from importlib.resources import files
from pathlib import PurePath

from espalier.app.config.project_table import config_tables

FLOWER = "flwr[simulation]>=1.41,<1.44"  # as the package itself asks for; `flwr build` looks for it here

GITIGNORE = """.flwr/
.venv/
__pycache__/
*.egg-info/
/results/
"""

PYPROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1.0"
description = "A task, a strategy and an algorithm of my own, run by Espalier"
readme = "README.md"
license = "Apache-2.0"
requires-python = ">=3.11"
dependencies = ["espalier-fl[app]", "{flower}"]

[tool.setuptools]
packages = ["{package}"]

# `flwr run` installs all dependencies again but for these. Packages that you add belong into both lists.
[tool.uv]
exclude-dependencies = ["espalier-fl", "flwr"]

[tool.flwr.app]
publisher = "somebody"

[tool.flwr.app.components]
serverapp = "espalier.app.server:app"
clientapp = "espalier.app.client:app"

# All settings: Flower refuses keys that are not here, and `espalier help KEY` explains them.
# These differ from the app's defaults: {keys}.
{tables}"""

README = """# {name}

A federation of 8 clients under 2 edges, with a task, a strategy and an algorithm of its own. All settings are in
`pyproject.toml`. Change one of the three files, and run it again:

```bash
flwr run . --stream                                         # results go to ~/espalier-results
espalier pyproject.toml                                     # the same without Flower's runtime, into results/
espalier pyproject.toml global-rounds=5 algorithm=h-fedavg  # with other settings
espalier check {package}.task:Tumours {package}.strategy:RootFedAvg {package}.algorithm:NEAR
```

With clients that are nodes of Flower's:

```bash
flwr run . --stream --run-config 'engine="flower"' --federation-config "num-supernodes=8 client-resources-num-cpus=1"
```
"""


def project_files(package: str) -> dict[PurePath, str]:
    """Return the texts of a new project's files, by their places in its folder.

    Parameters
    ----------
    package : str
        The name of its Python package; the project has hyphens for its underscores.
    """
    name, modules = package.replace("_", "-"), files("espalier.app.project.template")
    changed = {
        "algorithm": f"{package}.algorithm:NEAR",
        "engine": "in-process",
        "edge-strategy": f"{package}.strategy:RootFedAvg",
        "task": f"{package}.task:Tumours",
    }
    words = {"name": name, "package": package, "flower": FLOWER, "tables": config_tables(changed)}
    texts = {".gitignore": GITIGNORE, "README.md": README, "pyproject.toml": PYPROJECT}
    found = {PurePath(place): text.format(keys=", ".join(changed), **words) for place, text in texts.items()}
    for module in sorted(modules.iterdir(), key=lambda file: file.name):
        if module.name.endswith(".py"):
            found[PurePath(package, module.name)] = module.read_text(encoding="utf-8")
    return found
