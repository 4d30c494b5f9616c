import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from layerdescent.data.packages import DISTILBERT_CASED
from layerdescent.errors import InputError
from layerdescent.recipes import VideoRecipe, list_recipes, load_recipe

VIDEO = {
    "demo-video",
    *(
        f"{data}-{model}{length}"
        for data in ("ucsd-ped2", "avenue", "shanghaitech")
        for model in ("dust", "ut")
        for length in ("", "-full")
    ),
}
SHIPPED = VIDEO | {
    "demo",
    "imdb-minilm",
    "imdb-minilm-cls",
    "imdb-mpnet",
    "sst2-minilm",
    "mnli-minilm",
    "imdb-distilbert",
    "imdb-distilbert-cased",
    "imdb-roberta-large",
    "mnli-distilbert",
    "mnli-roberta-large",
    "smollm2-instruct",
    "llama31-8b-full",
    "llama31-8b-lora",
    "stories260k-tiny",
}


def test_what_comes_with_the_package() -> None:
    assert set(list_recipes()) == SHIPPED
    assert list_recipes()[0] == "demo"


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_shipped_recipe_loads_and_round_trips(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.needs
    assert {"erm", "descent"} <= recipe.arms.keys()
    assert isinstance(recipe.train["learning_rate"], float)
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    again = load_recipe(tmp_path / "recipe.yaml")
    assert again == recipe
    assert again.arm_fingerprint("descent") == recipe.arm_fingerprint("descent")


def test_natural_language_inference_with_this_encoder_is_said_to_be_contaminated() -> None:
    assert "contaminated" in load_recipe("mnli-minilm").description


def test_the_encoder_that_was_fine_tuned_and_rounded_is_not_passed_off_as_the_released_one() -> None:
    description = load_recipe("imdb-distilbert-cased").description
    assert "is not the released distilbert-base-cased" in description
    assert f"{DISTILBERT_CASED.package.install_command}." in description


@pytest.mark.parametrize(
    ("override", "read", "expected"),
    [
        ("train.learning_rate=1e-4", lambda recipe: recipe.train["learning_rate"], 1e-4),
        ("train.new_field=true", lambda recipe: recipe.train["new_field"], True),
        ("arms.descent.alpha=[0, 0.1]", lambda recipe: recipe.arms["descent"]["alpha"], [0, 0.1]),
        (
            "arms.clipped={objective: descent, clip_weights: true}",
            lambda recipe: recipe.arms["clipped"]["clip_weights"],
            True,
        ),
        ("seeds=[3, 4]", lambda recipe: recipe.seeds, [3, 4]),
        ("data.columns.text=body", lambda recipe: recipe.data.columns.text, "body"),
        ("data.source=a=b.csv", lambda recipe: recipe.data.source, "a=b.csv"),
        ("data.source={train: a.csv, test: b.csv}", lambda recipe: recipe.data.source["test"], "b.csv"),
        ("data.subset=null", lambda recipe: recipe.data.subset, None),
        ("evaluation.noise.0.gammas=[1]", lambda recipe: recipe.evaluation.noise[0].gammas, [1.0]),
        (
            "evaluation.noise.0={kind: discrete, shares: [0.1]}",
            lambda recipe: recipe.evaluation.noise[0].kind,
            "discrete",
        ),
        ("frontier.checkpoints=4", lambda recipe: recipe.frontier.checkpoints, 4),
        ("frontier.label_smoothing=[0, 0.1]", lambda recipe: recipe.frontier.label_smoothing, [0.0, 0.1]),
        ("evaluation.shift.sst2.source=dev.jsonl", lambda recipe: recipe.evaluation.shift["sst2"].source, "dev.jsonl"),
        (
            "evaluation.shift={a b: {source: x, rows: 9, label_names: [down, up]}}",
            lambda recipe: recipe.evaluation.shift["a b"].label_names,
            ["down", "up"],
        ),
        ("evaluation.bf16=true", lambda recipe: recipe.evaluation.bf16, True),
    ],
)
def test_overrides(override: str, read: Any, expected: Any) -> None:
    assert read(load_recipe("demo", [override])) == expected


def test_later_overrides_win() -> None:
    assert load_recipe("demo", ["seeds=[1]", "seeds=[2]"]).seeds == [2]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.max_lenght=3", r"data\.max_lenght: no such field; did you mean max_length\? fields here are source"),
        ("tarin.learning_rate=1", r"tarin: no such field; did you mean train\?"),
        ("data.columns.txt=a", r"data\.columns\.txt: no such field; did you mean text\?"),
        ("evaluation.noise.0.gama=[1]", r"evaluation\.noise\.0\.gama: no such field; did you mean gammas\?"),
        ("arms.descnt.alpha=1", r"no arm is called 'descnt'; did you mean descent\? there are erm, descent"),
        ("data.max_length.x=3", r"data\.max_length is a value and has no fields"),
        ("evaluation.noise.7.kind=gaussian", r"'7' is no entry of a list of 1"),
        ("evaluation.noise.x=gaussian", r"'x' is no entry of a list of 1"),
        ("seeds", r"override 'seeds' is not of the form path\.to\.field=value"),
        ("=3", "is not of the form"),
        ("train=[", r"the value of override 'train=\[', line 1 is not valid YAML"),
        ("evaluation.shift.sst2={split: dev}", r"evaluation\.shift\.sst2\.source: this field is missing"),
        (
            "evaluation.shift.sst2={source: a, parts: b}",
            r"sst2\.parts: no such field; did you mean part\? .*label_names",
        ),
        # A data set may be called as a section is.
        ("evaluation.shift.noise={source: a, parts: b}", r"noise\.parts: no such field; did you mean part\?"),
    ],
)
def test_misspelt_fields_and_overrides_are_named_in_one_line(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_recipe("demo", [override])
    assert "\n" not in str(caught.value)


def test_no_such_recipe() -> None:
    with pytest.raises(
        InputError, match=r"no recipe or file is called 'imdb-minlm'; did you mean imdb-minilm\? give a YAML file"
    ):
        load_recipe("imdb-minlm")


def test_files_that_hold_no_recipe(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("- a list\n")
    with pytest.raises(InputError, match=r"mine\.yaml holds no recipe: a mapping with the fields name, title"):
        load_recipe(path)
    path.write_text(load_recipe("demo").to_yaml().replace("seeds:\n- 0\n", ""))
    with pytest.raises(InputError, match=r"mine\.yaml: seeds: this field is missing"):
        load_recipe(path)
    path.write_text("name: [\n")
    with pytest.raises(InputError, match=r"mine\.yaml, line 2 is not valid YAML"):
        load_recipe(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"mine\.yaml cannot be read"):
        load_recipe(path)


def test_several_mistakes_are_counted() -> None:
    with pytest.raises(InputError, match=r"\(and 1 more\)$"):
        load_recipe("demo", ["seeds=[]", "metric=f1"])


def test_recipes_of_video_ask_for_noise_and_for_what_denoisers_know() -> None:
    for name in VIDEO:
        recipe = load_recipe(name)
        assert isinstance(recipe, VideoRecipe)
        assert {"erm", "descent", "deep-supervision", "noise", "descent-under-noise"} <= recipe.arms.keys()
        assert {part.kind for part in recipe.evaluation.noise} > {"gaussian", "uniform"}
    ut: Any = load_recipe("avenue-ut")
    dust: Any = load_recipe("avenue-dust")
    assert (ut.model.architecture, ut.data.scale, dust.data.scale) == ("ut", 0.5, 0.5)


def test_a_recipe_may_extend_another(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "extends: demo-video\nname: mine\ndata: {patch: 4, windows: {test: 7}}\narms: {noise: null}\nseeds: [3]\n"
    )
    base, recipe = load_recipe("demo-video"), load_recipe(tmp_path / "mine.yaml", ["train.learning_rate=0.5"])
    assert (recipe.name, recipe.title, recipe.seeds) == ("mine", base.title, [3])
    assert recipe.data.model_dump() == base.data.model_dump() | {
        "patch": 4,
        "windows": base.data.model_dump()["windows"] | {"test": 7},
    }
    assert recipe.arms == {name: arm for name, arm in base.arms.items() if name != "noise"}
    assert recipe.train == base.train | {"learning_rate": 0.5}
    (tmp_path / "a.yaml").write_text(f"extends: {tmp_path / 'b.yaml'}\n")
    (tmp_path / "b.yaml").write_text(f"extends: {tmp_path / 'a.yaml'}\n")
    with pytest.raises(InputError, match=r"extends is .*: name another recipe, and no circle of them"):
        load_recipe(tmp_path / "a.yaml")
    (tmp_path / "c.yaml").write_text("extends: deno\n")
    with pytest.raises(InputError, match="no recipe or file is called 'deno'; did you mean demo"):
        load_recipe(tmp_path / "c.yaml")


def test_what_is_extended_lies_beside_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("extends: demo-video\nname: base\nseeds: [7]\n")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\nname: mine\n")
    assert (load_recipe(tmp_path / "mine.yaml").name, load_recipe(tmp_path / "mine.yaml").seeds) == ("mine", [7])
    (tmp_path / "sub").mkdir()
    (tmp_path / "own.yaml").write_text("extends: sub/../own.yaml\n")
    with pytest.raises(InputError, match="no circle of them"):
        load_recipe(tmp_path / "own.yaml")


def test_recipes_are_light() -> None:
    heavy = "('torch', 'transformers', 'datasets', 'numpy')"
    code = f"import layerdescent.recipes, sys; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
