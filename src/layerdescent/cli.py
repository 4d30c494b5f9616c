"""The command line. Every command is a thin caller of the library; heavy imports happen inside the commands."""

import errno
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from layerdescent.errors import InputError, RunError


class _Commands(TyperGroup):
    """Turns every failure into one line and an exit code: 2 for wrong input, 1 for a failure while running."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let --debug stand anywhere in the line, not only before the command."""
        if "--debug" in args:
            args = ["--debug", *(argument for argument in args if argument != "--debug")]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        if ctx.params.get("debug"):
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except InputError as error:
            raise _stop(str(error), code=2) from None
        except RunError as error:
            raise _stop(str(error), code=1) from None
        except KeyboardInterrupt:
            raise _stop("stopped; what was saved is kept, and the same command goes on from there", code=1) from None
        except typer.Exit:
            raise
        except Exception as error:
            if type(error).__module__.startswith("typer."):  # usage errors: Typer prints them itself
                raise
            raise _stop(_plain(error), code=1) from None


def _stop(message: str, code: int) -> typer.Exit:
    typer.secho("error: " + " ".join(message.split()), err=True, fg=typer.colors.RED)
    return typer.Exit(code)


def _plain(error: Exception) -> str:
    """One line for an error that nobody foresaw, or that comes from the system."""
    no_space = (isinstance(error, OSError) and error.errno == errno.ENOSPC) or "No space left" in str(error)
    if no_space:
        return (
            "no space left on the device: what was saved before is kept; free some space and run the same command again"
        )
    return f"{type(error).__name__}: {error} (--debug shows where)"


app = typer.Typer(
    cls=_Commands,
    help="Train transformers so that every layer lowers the loss, and show that it does.",
    epilog="Start with: layerdescent compare demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _version(show: bool) -> None:
    if show:
        from importlib.metadata import version

        typer.echo(f"layerdescent {version('layerdescent')}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error. May stand anywhere.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del debug, version


RecipeName = Annotated[
    str, typer.Argument(help="Name of a recipe (see `layerdescent recipes`), or path of a YAML file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="FIELD=VALUE", help="Change a field of the recipe, e.g. arms.descent.alpha=0.1; repeatable."
    ),
]
Folder = Annotated[Path | None, typer.Option("--folder", "-o", help="Where to write; runs/RECIPE by default.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]
DataSource = Annotated[str, typer.Option("--data", help="Data: package:NAME, hub:NAME, a folder or a file.")]
Split = Annotated[str, typer.Option(help="Which part of the data to read.")]
TextColumn = Annotated[str | None, typer.Option(help="Column of the text.")]
PairColumn = Annotated[str | None, typer.Option(help="Column of the second text, for pairs.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column of the label.")]
Limit = Annotated[int, typer.Option(min=2, help="Use at most so many samples.")]
MaxLength = Annotated[int, typer.Option(min=4, help="Tokens a sample is cut to.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Samples a batch.")]


@app.command(epilog="Example: layerdescent train demo --arm descent --set arms.descent.alpha=0.1")
def train(
    recipe: RecipeName,
    arm: Annotated[str, typer.Option(help="Which arm of the recipe.")] = "descent",
    seed: Annotated[int | None, typer.Option(help="Seed; the recipe's first by default.")] = None,
    set_: Overrides = None,
    folder: Folder = None,
    quiet: Quiet = False,
) -> None:
    """Train one arm of a recipe; picks up where it was stopped."""
    from layerdescent.experiment import train_recipe
    from layerdescent.recipes import load_recipe

    chosen = load_recipe(recipe, set_ or [])
    path = train_recipe(chosen, arm, seed, folder or Path("runs") / chosen.name, progress=not quiet)
    typer.echo(f"model: {path}")


@app.command(epilog="Example: layerdescent compare demo")
def compare(
    recipe: RecipeName,
    arm: Annotated[list[str] | None, typer.Option(help="Only these arms; repeatable.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="These seeds instead of the recipe's; repeatable.")] = None,
    set_: Overrides = None,
    folder: Folder = None,
    quiet: Quiet = False,
) -> None:
    """Train every arm and seed of a recipe, evaluate them, and write one report page; picks up where it was stopped."""
    from layerdescent.experiment import compare_recipe
    from layerdescent.recipes import load_recipe
    from layerdescent.report import write_report
    from layerdescent.tables import comparison_table

    chosen = load_recipe(recipe, set_ or [])
    target = folder or Path("runs") / chosen.name
    results = compare_recipe(chosen, target, arms=arm, seeds=seed, progress=not quiet, command=_command())
    page = write_report(results, target)
    typer.echo(comparison_table(results))
    typer.echo(f"results: {target / 'results.json'}\npage:    {page}")


@app.command(epilog="Example: layerdescent report runs/demo")
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders with a results.json, or such files.")],
    folder: Annotated[
        Path | None, typer.Option("--folder", "-o", help="Where to write; the first one by default.")
    ] = None,
) -> None:
    """Write the report page again from stored results."""
    from layerdescent.report import write_report

    first = folders[0] if folders[0].is_dir() else folders[0].parent
    typer.echo(f"page: {write_report(list(folders), folder or first)}")


@app.command(epilog="Example: layerdescent recipes imdb-minilm")
def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this recipe whole, as YAML to start from.")] = None,
) -> None:
    """List the recipes, with what each needs; or show one."""
    from layerdescent.recipes import list_recipes, load_recipe

    if name is not None:
        typer.echo(load_recipe(name).to_yaml(), nl=False)
        return
    known = [load_recipe(each) for each in list_recipes()]
    width = max(len(recipe.name) for recipe in known)
    for recipe in known:
        needs = f" (needs {', '.join(recipe.needs)})" if recipe.needs else ""
        typer.echo(f"{recipe.name:<{width}}  {recipe.title}{needs}")


def _command() -> str:
    """The command as the user typed it, for the record."""
    import shlex

    return shlex.join(["layerdescent", *sys.argv[1:]])
