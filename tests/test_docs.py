"""The documentation says what is so: its programs run, its Python names what exists, its commands can be typed."""

import ast
import importlib
import re
import runpy
import shlex
from pathlib import Path

import pytest
import typer

from layerdescent import DescentConstraints, feasible, monotone

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language on a page; included files are not expanded."""
    found = (body for kind, body in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language)
    return [body for body in found if "--8<--" not in body]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_the_own_loop_descends_where_plain_training_does_not() -> None:
    example = runpy.run_path(str(ROOT / "docs" / "examples" / "own_loop.py"))
    plain, constraints = example["train"](dual_lr=0.0)
    constrained, _ = example["train"](dual_lr=0.3)
    assert isinstance(constraints, DescentConstraints)
    assert not monotone(plain)
    assert monotone(constrained)
    assert feasible(constrained, constraints)
    assert constrained[-1] < 2 * plain[-1]  # and the last layer still learned the task


def test_the_printed_output_of_the_own_loop_is_the_one_on_the_pages() -> None:
    printed = (ROOT / "docs" / "examples" / "own_loop.txt").read_text(encoding="utf-8")
    assert printed in blocks(ROOT / "README.md", "text")
    page = (ROOT / "docs" / "own-loop.md").read_text(encoding="utf-8")
    assert re.findall(r'^--8<-- "docs/examples/(.*)"$', page, re.MULTILINE) == ["own_loop.py", "own_loop.txt"]


def test_learned_ista_descends_where_plain_training_does_not() -> None:
    example = runpy.run_path(str(ROOT / "docs" / "examples" / "lista.py"))
    plain, constraints = example["train"](dual_lr=0.0)
    constrained, _ = example["train"](dual_lr=0.2)
    assert not monotone(plain)
    assert feasible(constrained, constraints)
    assert constrained[-1] < plain[-1]
    page = (ROOT / "docs" / "unrolled.md").read_text(encoding="utf-8")
    assert re.findall(r'^--8<-- "docs/examples/(.*)"$', page, re.MULTILINE) == ["lista.py", "lista.txt"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_on_the_pages_compiles_and_imports_what_exists(page: Path) -> None:
    for body in blocks(page, "python"):
        for node in ast.walk(ast.parse(body)):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = importlib.import_module(node.module)
                missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                assert not missing, f"{node.module} has no {', '.join(missing)}"


def typed_commands() -> list[tuple[str, str]]:
    """Every line of a shell block, and every inline code, that starts with `layerdescent `."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [line for body in blocks(page, "bash") for line in body.splitlines()]
        inline = re.findall(r"`(layerdescent [^`|…]+)`", text)
        found += [(name_of(page), line) for line in [*lines, *inline] if line.startswith("layerdescent ")]
    return found


@pytest.mark.parametrize(("page", "line"), typed_commands())
def test_commands_on_the_pages_exist_with_their_options(page: str, line: str) -> None:
    from layerdescent.cli import app

    group = typer.main.get_command(app)
    words = shlex.split(line, comments=True)[1:]
    words = words[: words.index(">")] if ">" in words else words
    if words[0].startswith("-"):
        return
    command = group.commands.get(words[0])  # type: ignore[attr-defined]
    assert command is not None, f"{page}: no command {words[0]!r}"
    known = {option for parameter in command.params for option in parameter.opts}
    used = {word.partition("=")[0] for word in words[1:] if word.startswith("-")}
    assert used <= known, f"{page}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_recipes_named_on_the_pages_exist(page: Path) -> None:
    from layerdescent.recipes import load_recipe

    text = page.read_text(encoding="utf-8")
    typed = re.findall(r"layerdescent (?:compare|train) ([a-z0-9][a-z0-9-]+)(?![\w./-])", text)
    mentioned = re.findall(r"`((?:imdb|mnli|sst2)-[a-z-]+)`", text)
    for name in {*typed, *mentioned}:
        load_recipe(name)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_the_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{name_of(page)}: {target}"


# What docs/architecture.md says of the modules: each imports only from those before it.
ORDER = [
    {"errors"},
    {"adapters", "files", "environment", "layers", "models", "noise_kinds", "statistics", "tables"},
    {"arrays", "cost", "descent"},
    {"duals", "readout", "perturbation", "recipes"},
    {"data", "training", "evaluation", "report"},
    {"generation", "whole_frames", "winrate"},
    {"tasks", "denoise"},
    {"runs"},
    {"experiment"},
    {"search"},
    {"suggest"},
    {"cli"},
    {"__init__", "__main__"},
]


def test_modules_import_downwards_only() -> None:
    level = {module: number for number, modules in enumerate(ORDER) for module in modules}
    source = ROOT / "src" / "layerdescent"
    for file in source.rglob("*.py"):
        own = file.relative_to(source).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("layerdescent."):
                other = str(node.module).split(".")[1]
                assert other == own or level[other] < level[own], f"{file.relative_to(source)} imports {node.module}"


def test_the_architecture_page_names_every_module() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for entry in (ROOT / "src" / "layerdescent").iterdir():
        if entry.suffix == ".py" and entry.name != "__main__.py":
            assert entry.name in page
        elif (entry / "__init__.py").is_file():
            assert f"{entry.name}/" in page


def test_the_page_that_explains_the_report_has_its_sections() -> None:
    template = (ROOT / "src" / "layerdescent" / "report" / "template.html.j2").read_text(encoding="utf-8")
    sections = re.findall(r"<h2[^>]*>(\d · [^<{]+)</h2>", template)
    guide = (ROOT / "docs" / "read-the-page.md").read_text(encoding="utf-8")
    assert len(sections) > 5
    assert [section for section in sections if f"**{section}**" not in guide] == []
