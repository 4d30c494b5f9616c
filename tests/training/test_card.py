"""What is saved is an ordinary checkpoint, with a card that says how it came about."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from layerdescent.training.card import BEGIN, END, write_card
from tests.training.tiny import make_trainer, pad, rows

WITHOUT_US = """
    import sys

    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "layerdescent":
                raise ImportError("layerdescent is not installed here")

    sys.meta_path.insert(0, Blocker())
    try:
        import layerdescent
    except ImportError:
        pass
    else:
        sys.exit("layerdescent could be imported")

    import torch
    from transformers import AutoModelForSequenceClassification

    torch.set_num_threads(1)
    model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
    ids = torch.tensor([[1, 7, 8, 9]])
    print(",".join(f"{x:.9e}" for x in model(input_ids=ids).logits[0].tolist()))
"""


def test_the_checkpoint_loads_where_we_are_not_installed(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "run", dual_lr=1.0)
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT_US), str(tmp_path / "model")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    model: Any = trainer.model
    with torch.no_grad():
        expected = model.eval()(input_ids=torch.tensor([[1, 7, 8, 9]])).logits[0]
    got = torch.tensor([float(x) for x in done.stdout.strip().split(",")])
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)


def card_of(folder: Path, **settings: Any) -> str:
    trainer = make_trainer(folder / "run", **settings)
    trainer.train()
    trainer.evaluate()
    trainer.save_model(str(folder / "model"))
    return (folder / "model" / "README.md").read_text()


def test_the_card_says_how_it_was_trained(tmp_path: Path) -> None:
    card = card_of(tmp_path, alpha=[0.1, 0.2, 0.3], dual_lr=0.7, resilience=2.0)
    assert card.startswith("---\nlibrary_name: transformers\ntags:\n- layerdescent\n---\n")
    assert "arxiv.org/abs/2601.17257" in card
    assert "4 optimiser steps of 8 samples" in card
    for row in (
        "| objective | descent |",
        "| alpha | `[0.1, 0.2, 0.3]` |",
        "| dual_lr | `0.7` |",
        "| resilience | `2.0` |",
        "| learning_rate | `0.001` |",
    ):
        assert row in card
    assert "at step 4 on validation data" in card
    assert "| layer | loss | alpha | violation |" in card
    assert "**not feasible**" in card


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"objective": "erm"}, "the loss of its last layer (ERM)"),
        ({"objective": "noise", "noise_gamma": 0.3}, "| noise_gamma | `0.3` |"),
        ({"objective": "deep-supervision"}, "| layer_weights | none |"),
    ],
    ids=str,
)
def test_other_objectives_do_not_claim_constraints(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    card = card_of(tmp_path, **settings)
    assert said in card
    assert "dual_lr" not in card
    assert "| layer | loss |\n" in card
    assert "feasible" not in card


def test_a_card_is_renewed_and_what_others_wrote_is_kept(tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    card.write_text("---\nlicense: mit\n---\n\n# Mine\n\nAn introduction.\n")
    write_card(tmp_path, f"{BEGIN}\nfirst\n{END}\n", "name", None, "transformers")
    write_card(tmp_path, f"{BEGIN}\nsecond\n{END}\n", "name", None, "transformers")
    assert card.read_text() == f"---\nlicense: mit\n---\n\n# Mine\n\nAn introduction.\n\n{BEGIN}\nsecond\n{END}\n"


def test_a_card_names_the_model_it_came_from(tmp_path: Path) -> None:
    write_card(tmp_path, f"{BEGIN}\n{END}\n", "name", "google/bert", "transformers")
    assert "base_model: google/bert\n" in (tmp_path / "README.md").read_text()


def test_transformers_own_card_gets_our_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path, dual_lr=1.0, eval_strategy="steps", eval_steps=4)
    trainer.train()
    trainer.create_model_card(model_name="x", license="mit")
    card = (tmp_path / "README.md").read_text()
    assert "license: mit" in card
    assert "Training hyperparameters" in card
    assert card.count(BEGIN) == 1


def test_nothing_of_ours_is_in_the_saved_config(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "run")
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    assert "descent" not in (tmp_path / "model" / "config.json").read_text()
    assert pad(rows(2))  # the batch format is transformers' own
