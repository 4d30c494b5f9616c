"""Can one head read every layer? What a pretrained encoder offers it at each layer, before any fine-tuning.

    python benchmarks/head_inputs.py imdb-minilm          # -> results/imdb-minilm-head-inputs.json
    python benchmarks/head_inputs.py imdb-minilm --set data.source=PATH/aclImdb --set data.subset=null

For the first token's state and for the mean over positions, at every layer:

    spread   root mean square, over inputs and features, of the deviation from the mean over inputs. A head shared by
             all layers has one scale: where the spread is a hundredth of the last layer's, it sees a constant.
    probe    loss and accuracy on validation rows of a logistic regression on standardised features, fitted to training
             rows with an L2 penalty: what the layer holds for a head of its own, that may rescale it.

Where the probe is good and the spread tiny, the information is there and a shared head cannot reach it.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import AutoModel

from layerdescent.data import prepare, resolve_model
from layerdescent.environment import describe_environment
from layerdescent.evaluation.batches import stored_tokenizer
from layerdescent.files import write_json
from layerdescent.models.pooled import mean_over_positions
from layerdescent.recipes import load_recipe

POOLINGS = ("first token", "mean")


def states(model: Any, rows: Dataset, tokenizer: Any, batch_size: int = 64) -> dict[str, Tensor]:
    """For every pooling the states (L + 1, N, d) of all rows, in the rows' order."""
    found: dict[str, list[Tensor]] = {pooling: [] for pooling in POOLINGS}
    starts = range(0, len(rows), batch_size)
    with torch.no_grad():
        for start in tqdm(starts, desc="reading", unit="batch", leave=False):
            part = rows[start : start + batch_size]
            inputs = {name: part[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in part}
            batch = tokenizer.pad(inputs, return_tensors="pt").to(model.device)
            hidden = model(**batch, output_hidden_states=True).hidden_states
            found["first token"].append(torch.stack([state[:, 0] for state in hidden]).float().cpu())
            pooled = [mean_over_positions(state, batch["attention_mask"]) for state in hidden]
            found["mean"].append(torch.stack(pooled).float().cpu())
    return {pooling: torch.cat(parts, dim=1) for pooling, parts in found.items()}


def spread(rows: Tensor) -> float:
    """Root mean square deviation of rows (N, d) from their mean.

    >>> spread(torch.tensor([[1.0, 0.0], [3.0, 0.0]])) ** 2
    0.5
    """
    return (rows - rows.mean(dim=0)).square().mean().sqrt().item()


def probe(train: Tensor, labels: Tensor, test: Tensor, test_labels: Tensor, penalty: float) -> tuple[float, float]:
    """Loss and accuracy on test rows of a penalised logistic regression on standardised train rows.

    min_W,b  mean CE(x~ W + b, y) + penalty / 2 |W|^2,   x~ = (x - mean) / deviation, both of the train rows
    """
    mean, deviation = train.double().mean(dim=0), train.double().std(dim=0)
    train, test = ((rows.double() - mean) / (deviation + 1e-9) for rows in (train, test))
    K = int(labels.max()) + 1
    weight = torch.zeros(train.shape[1], K, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(K, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = cross_entropy(train @ weight + bias, labels) + penalty / 2 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    logits = (test @ weight + bias).detach()
    return cross_entropy(logits, test_labels).item(), (logits.argmax(1) == test_labels).double().mean().item()


def layers(
    train: Tensor, labels: Tensor, test: Tensor, test_labels: Tensor, penalty: float
) -> Iterator[dict[str, Any]]:
    """Spread and probe of each layer, from states (L + 1, N, d)."""
    for layer in range(len(train)):
        loss, accuracy = probe(train[layer], labels, test[layer], test_labels, penalty)
        yield {"layer": layer, "spread": spread(train[layer]), "probe_loss": loss, "probe_accuracy": accuracy}


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="whose encoder and data are looked at")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="change a field of the recipe"
    )
    parser.add_argument("--rows", type=int, default=2000, help="training rows, and at most so many validation rows")
    parser.add_argument("--penalty", type=float, default=0.03, help="of the probe")
    parser.add_argument("--output", type=Path, help="results/RECIPE-head-inputs.json by default")
    asked = parser.parse_args(arguments)

    rows = f"data.rows={{train: {asked.rows}, validation: {asked.rows}, test: 100}}"  # the test part is not looked at
    recipe = load_recipe(asked.recipe, [*asked.set, rows])
    source = resolve_model(recipe.model.source)
    tokenizer = stored_tokenizer(source, recipe.model.revision)
    data = prepare(recipe.data, tokenizer)
    model = AutoModel.from_pretrained(source, revision=recipe.model.revision).eval()
    train, test = (states(model, part, tokenizer) for part in (data.train, data.validation))
    labels, test_labels = (torch.tensor(part["labels"]) for part in (data.train, data.validation))
    found = {
        pooling: list(layers(train[pooling], labels, test[pooling], test_labels, asked.penalty)) for pooling in POOLINGS
    }
    print(f"{'':8}" + "".join(f"{pooling:^28}" for pooling in POOLINGS))
    print(f"{'layer':8}" + "    spread   probe: loss  acc." * len(POOLINGS))
    for layer in range(len(found["mean"])):
        cells = [found[pooling][layer] for pooling in POOLINGS]
        print(
            f"{layer:<8}"
            + "".join(
                f"{cell['spread']:10.4f}   {cell['probe_loss']:8.3f}  {cell['probe_accuracy']:.3f}" for cell in cells
            )
        )
    output = asked.output or Path("results") / f"{recipe.name}-head-inputs.json"
    write_json(
        output,
        {
            "benchmark": "head_inputs",
            "recipe": recipe.to_dict(),
            "rows": {"train": len(data.train), "validation": len(data.validation)},
            "penalty": asked.penalty,
            "poolings": found,
            "environment": describe_environment(),
        },
    )
    print(f"results: {output}")


if __name__ == "__main__":
    main()
