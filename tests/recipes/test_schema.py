import pytest

from layerdescent.errors import InputError
from layerdescent.recipes import Recipe, VideoRecipe, load_recipe


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("arms.descent=3", r"arms\.descent: Input should be a valid dictionary \(given: 3\)"),
        ("arms.a/b={objective: erm}", r"arms\.a/b.*'a/b' is to be the name of a folder"),
        ("arms={erm@weight_decay=1: {objective: erm}}", "'erm@weight_decay=1' is to be the name of a folder"),
        ("arms={..: {objective: erm}}", r"'\.\.' is to be the name of a folder"),
        ("evaluation.noise.0.gammas=[.inf]", r"evaluation\.noise\.0\.gammas\.0: .*finite"),
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
def test_values_that_cannot_be_are_named_in_one_line(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_recipe("demo", [override])
    assert "\n" not in str(caught.value)


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
        ("data.kind=text", "data.kind is 'text': say video or instructions, or leave it out for text"),
    ],
)
def test_mistakes_in_recipes_of_video(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_recipe("demo-video", [override])


def test_noise_on_pixels_is_not_for_text() -> None:
    with pytest.raises(InputError, match="poisson noise is not for what these models read: choose one of gaussian"):
        load_recipe("demo", ["evaluation.noise=[{kind: poisson, gammas: [1]}]"])


def test_a_search_tries_all_combinations_the_last_field_fastest() -> None:
    grid = "{weight_decay: [0, 0.1], learning_rate: [1e-4, 2e-4, 4e-4]}"
    recipe = load_recipe("demo", [f"search={{arms: {{erm: {grid}, descent: {{alpha: [0.1]}}}}, unequal: true}}"])
    assert recipe.search is not None
    assert [(row["weight_decay"], row["learning_rate"]) for row in recipe.search.grid("erm")] == [
        (decay, rate) for decay in (0, 0.1) for rate in (1e-4, 2e-4, 4e-4)
    ]
    assert load_recipe("demo").search is None


def test_the_noise_that_trials_are_measured_under_is_not_searched() -> None:
    search = "search={arms: {erm: {input_gamma: [0.1, 0.2]}, descent: {alpha: [0.1, 0.2]}}}"
    with pytest.raises(InputError, match="input_gamma is the noise that trials are measured under"):
        load_recipe("demo-video", [search])
    load_recipe("demo-video", [search.replace("input_gamma", "weight_decay")])


def test_a_searched_value_may_be_a_list_or_null() -> None:
    recipe = load_recipe("demo", ["search={arms: {erm: {layer_weights: [null, [0, 1]]}}}"])
    assert recipe.search is not None
    assert recipe.search.grid("erm") == [{"layer_weights": None}, {"layer_weights": [0, 1]}]


def test_names_of_clips_that_look_like_numbers_stay_names() -> None:
    recipe = load_recipe("demo-video", ["data.clips={train: [01_0014, 12], test: [01, 07.avi]}"])
    assert isinstance(recipe, VideoRecipe)
    assert recipe.data.clips == {"train": ["01_0014", "12"], "test": ["01", "07.avi"]}
