import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from layerdescent.data.packages import DISTILBERT_CASED
from layerdescent.errors import InputError
from layerdescent.recipes import Recipe, VideoRecipe, list_recipes, load_recipe

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
        ("arms.descent=3", r"arms\.descent: Input should be a valid dictionary \(given: 3\)"),
        ("arms.a/b={objective: erm}", r"arms\.a/b.*'a/b' is to be the name of a folder"),
        ("arms={erm@weight_decay=1: {objective: erm}}", "'erm@weight_decay=1' is to be the name of a folder"),
        ("arms={..: {objective: erm}}", r"'\.\.' is to be the name of a folder"),
        ("evaluation.noise.0.gammas=[.inf]", r"evaluation\.noise\.0\.gammas\.0: .*finite"),
        ("data.max_length.x=3", r"data\.max_length is a value and has no fields"),
        ("evaluation.noise.7.kind=gaussian", r"'7' is no entry of a list of 1"),
        ("evaluation.noise.x=gaussian", r"'x' is no entry of a list of 1"),
        ("seeds", r"override 'seeds' is not of the form path\.to\.field=value"),
        ("=3", "is not of the form"),
        ("train=[", r"the value of override 'train=\[', line 1 is not valid YAML"),
        ("data.max_length=many", r"data\.max_length: .*valid integer.* \(given: 'many'\)"),
        ("data.strip_html=perhaps", r"data\.strip_html: .*valid boolean"),
        ("data.rows.train=0", r"data\.rows\.train: .*greater than or equal to 1 \(given: 0\)"),
        ("data.source={train: a, tets: b}", r"data\.source\.tets: no part is called tets; did you mean test\?"),
        ("data.format=cvs", r"data\.format: Input should be 'auto'"),
        ("data.splits={test: dev, validation: dev}", r"data\.splits: uses one part of the source twice"),
        ("data.holdout={validation: 0.5, test: 0.6}", r"data\.holdout: 0\.5 \+ 0\.6 leaves no training rows"),
        ("data.label_names=[a, a]", r"data\.label_names: needs two or more different names"),
        (
            "evaluation.noise.0.gammas=[-1]",
            r"evaluation\.noise\.0\.gammas\.0: .*greater than or equal to 0 \(given: -1\)",
        ),
        ("evaluation.noise.0.gammas=[]", r"evaluation\.noise\.0: gaussian noise needs gammas"),
        (
            "evaluation.noise.0.kind=discreet",
            r"evaluation\.noise\.0\.kind: Input should be 'gaussian', 'uniform', 'discrete', ",
        ),
        ("evaluation.noise.0={kind: discrete}", r"discrete noise needs shares"),
        ("frontier.width=[64]", r"frontier\.width is for video"),
        ("frontier.label_smoothing=[1]", r"frontier\.label_smoothing\.0: .*less than 1 \(given: 1\)"),
        ("evaluation.shift.sst2={split: dev}", r"evaluation\.shift\.sst2\.source: this field is missing"),
        (
            "evaluation.shift.sst2={source: a, parts: b}",
            r"sst2\.parts: no such field; did you mean part\? .*label_names",
        ),
        ("evaluation.shift.sst2={source: a, rows: 0}", r"evaluation\.shift\.sst2\.rows: .*greater than or equal to 1"),
        ("evaluation.shift.sst2={source: a, label_names: [a, a]}", r"label_names: needs two or more different names"),
        ("evaluation.whole_frames={clips: 2}", r"whole_frames and evaluation\.pictures are for video"),
        ("evaluation.pictures=[1]", r"whole_frames and evaluation\.pictures are for video"),
        ("evaluation.shift={a.b: {source: x}}", r"evaluation\.shift\.a\.b.*should match pattern"),
        ("seeds=[]", r"seeds: List should have at least 1 item"),
        ("seeds=[1, 1]", r"seeds: holds a seed twice: \[1, 1\]"),
        ("baseline=emr", r"the baseline 'emr' is not among the arms \(erm, descent\)"),
        ("metric=rmse", r"metric rmse does not fit data\.task classification"),
        ("train.seed=3", r"train: seed is set by the program"),
        (
            "search={arms: {erm: {weight_decay: [0, 1]}, descent: {alpha: [0.1, 0.2], dual_lr: [0.1, 1]}}}",
            r"search: every arm must have the same number of trials, and they have: erm 2, descent 4; .*unequal: true",
        ),
        ("search={arms: {descent: {alpha: [0.1]}}}", r"search\.arms lacks the baseline 'erm'"),
        ("search={arms: {erm: {}}}", r"search\.arms: erm has no field to search"),
        ("search={arms: {erm: {weight_decay: []}}}", r"search\.arms: erm\.weight_decay has no values"),
        ("search={arms: {erm: {weight_decay: 0.1}}}", r"search\.arms\.erm\.weight_decay: .*valid list \(given: 0\.1\)"),
        ("search={arms: {erm: {num_train_epochs: [1, 1.0]}}}", r"erm\.num_train_epochs holds a value twice"),
        ("search={arms: {erm: {seed: [1]}}}", r"erm\.seed is set by the program for each run; seeds belong in search"),
        ("search={arms: {erm: {objective: [erm]}}}", r"erm\.objective decides by what rule"),
        ("search={arms: {erm: {weight_decay: [0]}, ermine: {weight_decay: [0]}}}", r"no arm is called 'ermine'"),
        ("search={price: -1, arms: {erm: {weight_decay: [0]}}}", r"search\.price: .*greater than or equal to 0"),
        ("search={seeds: [1, 1], arms: {erm: {weight_decay: [0]}}}", r"search\.seeds: holds a seed twice"),
        ("search={prize: 1, arms: {erm: {weight_decay: [0]}}}", r"search\.prize: no such field; did you mean price\?"),
        ("arms.descent.output_dir=x", r"arms: output_dir is set by the program"),
        ("name=A b", r"name: String should match pattern"),
    ],
)
def test_mistakes_are_named_in_one_line(override: str, message: str) -> None:
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


@pytest.mark.parametrize(
    ("override", "erm", "descent"),
    [
        ("seeds=[7, 8]", False, False),
        ("evaluation.noise_seeds=[1, 2]", False, False),
        ("title=Another", False, False),
        ("arms.new={objective: noise}", False, False),
        ("frontier.checkpoints=4", False, False),
        ("arms.descent.alpha=0.15", False, True),
        ("train.learning_rate=3e-4", True, True),
        ("data.max_length=81", True, True),
        ("model.revision=main", True, True),
    ],
)
def test_fingerprints_change_with_what_decides_results(override: str, erm: bool, descent: bool) -> None:
    before, after = load_recipe("demo"), load_recipe("demo", [override])
    assert (before.arm_fingerprint("erm") != after.arm_fingerprint("erm")) is erm
    assert (before.arm_fingerprint("descent") != after.arm_fingerprint("descent")) is descent


def test_fingerprints_do_not_depend_on_how_a_value_is_written() -> None:
    demo = load_recipe("demo")
    fingerprint = demo.arm_fingerprint("erm")
    for override in (
        f"train.num_train_epochs={float(demo.train['num_train_epochs'])}",
        f"train.learning_rate={demo.train['learning_rate']:.8f}",
        f"data.rows.train={demo.data.rows.train}",
        f"arms.erm.weight_decay={demo.train['weight_decay']}",
    ):
        assert load_recipe("demo", [override]).arm_fingerprint("erm") == fingerprint
    turned = Recipe.model_validate({**demo.to_dict(), "train": dict(reversed(demo.train.items()))})
    assert turned.arm_fingerprint("erm") == fingerprint
    true, one = (load_recipe("demo", [f"train.bf16={value}"]).arm_fingerprint("erm") for value in ("true", "1"))
    assert true != one


def test_an_arm_overrides_what_is_shared() -> None:
    demo, recipe = load_recipe("demo"), load_recipe("demo", ["arms.descent.learning_rate=1e-3"])
    assert recipe.arm_settings("descent")["learning_rate"] == 1e-3
    assert recipe.arm_settings("erm")["learning_rate"] == demo.train["learning_rate"] != 1e-3


def test_recipes_of_video_ask_for_noise_and_for_what_denoisers_know() -> None:
    for name in VIDEO:
        recipe = load_recipe(name)
        assert isinstance(recipe, VideoRecipe)
        assert {"erm", "descent", "deep-supervision", "noise", "descent-under-noise"} <= recipe.arms.keys()
        assert {part.kind for part in recipe.evaluation.noise} > {"gaussian", "uniform"}
    ut: Any = load_recipe("avenue-ut")
    dust: Any = load_recipe("avenue-dust")
    assert (ut.model.architecture, ut.data.scale, dust.data.scale) == ("ut", 0.5, 0.5)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.input_gamma=0", "a denoiser needs noise: give train.input_gamma above 0, the same for all arms"),
        ("arms.erm.input_gamma=0.3", "a denoiser needs noise"),
        ("evaluation.noise=[{kind: discrete, shares: [0.5]}]", "discrete noise is not for what these models read"),
        ("evaluation.shift={other: {source: here.csv}}", "evaluation.shift is for text"),
        ("evaluation.whole_frames.gamma=1", r"whole_frames\.gamma: no such field; did you mean gammas\?"),
        ("evaluation.whole_frames.gammas=[]", r"whole_frames\.gammas: .*at least 1 item"),
        ("evaluation.pictures=[-1]", r"pictures\.0: .*greater than or equal to 0"),
        ("data.windows.trian=3", "data.windows.trian: no such field; did you mean train?"),
        ("data.patchs=3", "data.patchs: no such field; did you mean patch?"),
        ("model.architecture=dusty", "model.architecture: .*'dust', 'ut'"),
        ("metric=accuracy", "metric accuracy does not fit data.task regression"),
        ("data.kind=text", "data.kind is 'text': say video, or leave it out for text"),
    ],
)
def test_mistakes_in_recipes_of_video(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_recipe("demo-video", [override])


def test_noise_on_pixels_is_not_for_text() -> None:
    with pytest.raises(InputError, match="poisson noise is not for what these models read: choose one of gaussian"):
        load_recipe("demo", ["evaluation.noise=[{kind: poisson, gammas: [1]}]"])


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


def test_recipes_are_light() -> None:
    heavy = "('torch', 'transformers', 'datasets', 'numpy')"
    code = f"import layerdescent.recipes, sys; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_search_tries_all_combinations_the_last_field_fastest() -> None:
    grid = "{weight_decay: [0, 0.1], learning_rate: [1e-4, 2e-4, 4e-4]}"
    recipe = load_recipe("demo", [f"search={{arms: {{erm: {grid}, descent: {{alpha: [0.1]}}}}, unequal: true}}"])
    assert recipe.search is not None
    assert [(row["weight_decay"], row["learning_rate"]) for row in recipe.search.grid("erm")] == [
        (decay, rate) for decay in (0, 0.1) for rate in (1e-4, 2e-4, 4e-4)
    ]
    assert load_recipe("demo").search is None


def test_a_searched_value_may_be_a_list_or_null() -> None:
    recipe = load_recipe("demo", ["search={arms: {erm: {layer_weights: [null, [0, 1]]}}}"])
    assert recipe.search is not None
    assert recipe.search.grid("erm") == [{"layer_weights": None}, {"layer_weights": [0, 1]}]
