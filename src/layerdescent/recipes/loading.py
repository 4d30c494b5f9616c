"""The two ways to a recipe, by name or by file.

recipe = load_recipe("demo", overrides=["train.learning_rate=1e-4", "arms.descent.alpha=0.1"])
"""

from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from layerdescent.errors import InputError
from layerdescent.recipes.common import nearest
from layerdescent.recipes.schema import InstructionsRecipe, Recipe, VideoRecipe
from layerdescent.recipes.yaml_text import read_yaml


def list_recipes() -> list[str]:
    """The names of the recipes that come with the package, the demo first."""
    return sorted(_shipped(), key=lambda name: (name != "demo", name))


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe by name or from a YAML file, with some values replaced.

    A recipe with `extends: NAME` is what that one is, with its own fields over it, mapping by mapping. A path there
    starts at the recipe's own folder, or where the program runs.

    Args:
        name_or_path: the name of a recipe that comes with the package, or the path of a YAML file.
        overrides: `path.to.field=value`, applied in order; the value is read as YAML. A number in the path counts the
            entries of a list from 0. `train` and an arm may get new fields, and `arms.NAME={…}` a new arm.

    Raises:
        InputError: no such recipe or field (with the nearest that there is), or a value that does not fit.

    Example:
        >>> load_recipe("demo", ["arms.descent.alpha=0.1"]).arms["descent"]["alpha"]
        0.1
    """
    content, where = _content(name_or_path)
    for override in overrides:
        _override(content, override)
    data = content.get("data")
    named = data.get("kind") if isinstance(data, dict) else None
    kinds: dict[str | None, type[Recipe]] = {None: Recipe, "video": VideoRecipe, "instructions": InstructionsRecipe}
    if named not in kinds:
        raise InputError(f"{where}: data.kind is {named!r}: say video or instructions, or leave it out for text")
    kind = kinds[named]
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise InputError(_explain(error, where, kind)) from None


def _shipped() -> dict[str, Any]:
    folder = resources.files("layerdescent.recipes")
    return {file.name.removesuffix(".yaml"): file for file in folder.iterdir() if file.name.endswith(".yaml")}


def _content(name_or_path: str | Path, extending: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
    """What a recipe says, over what the recipe that it extends says, and what it is called."""
    text, where = _read(name_or_path)
    content = read_yaml(text, where=where)
    if not isinstance(content, dict):
        raise InputError(
            f"{where} holds no recipe: a mapping with the fields {', '.join(Recipe.model_fields)} is expected"
        )
    base = content.pop("extends", None)
    if base is None:
        return content, where
    if isinstance(base, str) and base not in _shipped():
        beside = (Path(name_or_path).expanduser().parent / base).resolve()
        base = str(beside) if beside.is_file() else base
    if not isinstance(base, str) or base in extending:
        raise InputError(f"{where}: extends is {base!r}: name another recipe, and no circle of them")
    return _merged(_content(base, [*extending, base])[0], content), where


def _merged(base: Any, own: Any) -> Any:
    """Mappings field by field, everything else as a whole; what is null in `own` goes."""
    if not (isinstance(base, dict) and isinstance(own, dict)):
        return own
    both = base | {name: _merged(base.get(name), value) for name, value in own.items()}
    return {name: value for name, value in both.items() if name not in own or own[name] is not None}


def _read(name_or_path: str | Path) -> tuple[str, str]:
    shipped = _shipped()
    if str(name_or_path) in shipped:
        return shipped[str(name_or_path)].read_text(encoding="utf-8"), f"recipe {name_or_path}"
    path = Path(name_or_path).expanduser()
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8"), f"recipe {path}"
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the recipe file {path} cannot be read: {error}") from None
    raise InputError(
        f"no recipe or file is called {str(name_or_path)!r}; {nearest(path.stem, shipped)}give a YAML file or one of "
        f"{', '.join(sorted(shipped))}"
    )


def _override(content: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise InputError(f"override {override!r} is not of the form path.to.field=value")
    place: Any = content
    for depth, key in enumerate(keys[:-1]):
        if isinstance(place, list):
            place = place[_index(place, key, override)]
        else:
            if depth == 1 and keys[0] == "arms" and key not in place:
                raise InputError(
                    f"override {override!r}: no arm is called {key!r}; {nearest(key, place)}there are "
                    f"{', '.join(place)}"
                )
            if place.get(key) is None:
                place[key] = {}  # a section left to its defaults; a wrong name is found when the recipe is checked
            place = place[key]
        if not isinstance(place, dict | list):
            raise InputError(f"override {override!r}: {'.'.join(keys[: depth + 1])} is a value and has no fields")
    value = read_yaml(text, where=f"the value of override {override!r}")
    if isinstance(place, list):
        place[_index(place, keys[-1], override)] = value
    else:
        place[keys[-1]] = value


def _index(entries: list[Any], key: str, override: str) -> int:
    if not key.isdecimal() or int(key) >= len(entries):
        raise InputError(f"override {override!r}: {key!r} is no entry of a list of {len(entries)}; the first is 0")
    return int(key)


def _explain(error: ValidationError, where: str, recipe: type[Recipe]) -> str:
    """One line for the first mistake: where it is, what it is, what was probably meant."""
    problems = error.errors(include_url=False)
    # Where a field may be of two types each type complains; the complaint that goes deepest is about the type meant.
    one_field = [problem for problem in problems if problem["loc"][:2] == problems[0]["loc"][:2]]
    first = max(one_field, key=lambda problem: len(problem["loc"]))
    path = [str(step) for step in first["loc"] if step != "str" and not str(step).startswith(("dict[", "[key]"))]
    place = ".".join(path)
    if first["type"] == "extra_forbidden":
        fields = _fields_at(path[:-1], recipe)
        message = f"{place}: no such field; {nearest(path[-1], fields)}fields here are {', '.join(fields)}"
    elif first["type"] == "missing":
        missing = [".".join(map(str, problem["loc"])) for problem in problems if problem["type"] == "missing"]
        if len(missing) > 1:
            return f"{where}: these fields are missing: {', '.join(missing)}"
        message = f"{place}: this field is missing"
    else:
        given = first["input"]
        shown = f" (given: {given!r})" if not isinstance(given, dict | BaseModel) else ""
        said = first["msg"].removeprefix("Value error, ")
        message = f"{place}: {said}{shown}" if place else said
    others = len(problems) - len(one_field)
    more = f" (and {others} more)" if others else ""
    return f"{where}: {message}{more}"


def _fields_at(path: Sequence[str], recipe: type[Recipe]) -> list[str]:
    """The names of the fields of the section at a path."""
    section: type[BaseModel] = recipe
    for step in path:
        if step in section.model_fields:  # else the place in a list, or a name that the user gave
            section = next(_sections(section.model_fields[step].annotation), section)
    return list(section.model_fields)


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections in a field's type, such as the one of `list[NoiseSpec] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _sections(part)
