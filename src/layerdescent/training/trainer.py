"""`DescentTrainer`: transformers' Trainer under layerwise descent constraints."""

from transformers import Trainer

from layerdescent.training.mixin import DescentMixin


class DescentTrainer(DescentMixin, Trainer):
    """transformers' Trainer that also makes every layer lower the loss.

    It takes what Trainer takes, with a `DescentConfig` as `args`. One forward and one backward pass serve all constraints:

        minimise in the weights   F_L + sum_l lambda_l [F_l - (1 - alpha_l) F_{l-1}]                                        [P]
        then                      lambda_l <- max(0, lambda_l + dual_lr (c_l / ref_l - lambda_l / resilience))              [D]

    with F_l the loss read from layer l by the model's own head. At lambda = 0, and with `objective="erm"`, it is Trainer to the last bit.
    Under gradient accumulation all objectives average over the samples of the whole step. (For models whose loss ignores
    `num_items_in_batch`, BERT among them, Trainer sums the micro-batches' means instead: a gradient that many times as large.)

    What it logs each `logging_steps`, to any tracker of `report_to`: Trainer's `loss` (the objective as minimised, so the Lagrangian),
    `final_layer_loss` and `layer_loss/l` (means since the last entry, dropout on), `violation/l` (raw c_l), `max_violation` (relative),
    `multiplier/l`, `lagrangian_weight/l`, `slack/l`, `active_share/l` (share of steps with lambda_l > 0), `capped_share`. An evaluation adds
    `eval_layer_loss/l`, `eval_violation/l`, `eval_max_violation`, `eval_feasible`, `eval_monotone`, `eval_descent_score`.
    With `load_best_model_at_end` the best feasible checkpoint is kept.

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> from layerdescent.training import DescentConfig
        >>> model = BertForSequenceClassification(
        ...     BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
        ... )
        >>> rows = [{"input_ids": torch.randint(20, (5,)), "labels": i % 2} for i in range(8)]
        >>> args = DescentConfig(output_dir="/tmp/doctest", max_steps=2, use_cpu=True, disable_tqdm=True, save_strategy="no")
        >>> trainer = DescentTrainer(model=model, args=args, train_dataset=rows)
        >>> result = trainer.train()  # doctest: +ELLIPSIS
        {...}
        >>> trainer.multipliers.values.shape
        torch.Size([2])
    """
