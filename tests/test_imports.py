"""Start-up stays light, and the public API is what `__init__.py` says."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import layerdescent

HEAVY = {"torch", "transformers", "datasets", "accelerate", "matplotlib", "numpy", "scipy", "pandas", "pyarrow"}

# Counted rather than timed, so that a busy machine fails nothing. Measured: 11 and 258 modules, in 0.02 s and 0.15 s.
MOST_MODULES = {"import": 25, "help": 350}

PROGRAMS = {
    "import": "import layerdescent; layerdescent.__all__; dir(layerdescent)",
    "help": """
from layerdescent.cli import app
try:
    app(["--help"])
except SystemExit as end:
    assert not end.code
""",
}
COUNT = """
import json, sys
before = set(sys.modules)
{program}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.fixture(scope="module", params=PROGRAMS)
def loaded(request: pytest.FixtureRequest) -> tuple[str, set[str]]:
    """The modules that a fresh interpreter loads for one of the programs."""
    code = COUNT.format(program=PROGRAMS[request.param])
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return request.param, set(json.loads(run.stdout.splitlines()[-1]))


def test_start_up_loads_nothing_heavy(loaded: tuple[str, set[str]]) -> None:
    _, modules = loaded
    assert not HEAVY & {name.partition(".")[0] for name in modules}


def test_start_up_loads_few_modules(loaded: tuple[str, set[str]]) -> None:
    program, modules = loaded
    assert len(modules) <= MOST_MODULES[program], sorted(modules)


def type_checking_imports() -> dict[str, str]:
    """Name -> module as the `if TYPE_CHECKING` block of `__init__.py` states them."""
    tree = ast.parse(Path(str(layerdescent.__file__)).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_what_type_checkers_see_is_what_runs() -> None:
    assert type_checking_imports() == {name: f"layerdescent.{module}" for name, module in layerdescent._HOME.items()}


@pytest.mark.parametrize("name", layerdescent.__all__)
def test_every_public_name_resolves_to_something_described(name: str) -> None:
    value = getattr(layerdescent, name)
    assert value is getattr(importlib.import_module(f"layerdescent.{layerdescent._HOME[name]}"), name)
    assert value.__doc__


def test_dir_shows_the_public_api_and_no_more() -> None:
    assert dir(layerdescent) == sorted([*layerdescent.__all__, "__version__"])


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'DecentTrainer'"):
        _ = layerdescent.DecentTrainer  # type: ignore[attr-defined]
