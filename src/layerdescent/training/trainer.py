"""`DescentTrainer`: transformers' Trainer under layerwise descent constraints."""

from transformers import Trainer

from layerdescent.training.mixin import DescentMixin


class DescentTrainer(DescentMixin, Trainer):
    """transformers' Trainer that also makes every layer lower the loss.

    It takes what Trainer takes, with a `DescentConfig` as `args`. One forward and one backward pass serve all
    constraints; each optimiser step is

        minimise in the weights   F_L + sum_l lambda_l [F_l - (1 - alpha_l) F_{l-1}]                         [P]
        then                      lambda_l <- max(0, lambda_l + dual_lr (c_l / ref_l - lambda_l / rho))      [D]

    with F_l the loss read from layer l by the model's own head, c_l the bracket, and rho the resilience (no leak
    without it). At lambda = 0, and with `objective="erm"`, it is Trainer to the last bit.

    With gradient accumulation every objective is a mean over the samples of the whole step, whatever the sizes of its
    micro-batches. (Trainer itself sums the means of the micro-batches for models that take `num_items_in_batch` and
    ignore it, BERT among them; its gradient is then that many times as large.)

    Logged each `logging_steps`, to any tracker of `report_to`:

        loss                  the objective as minimised: the Lagrangian
        final_layer_loss      F_L
        layer_loss/l          F_l, mean since the last entry, with dropout on
        violation/l           c_l, in the units of the loss
        max_violation         the largest c_l / F_{l-1}
        multiplier/l, slack/l, lagrangian_weight/l    as they stand
        active_share/l        share of the steps with lambda_l > 0
        capped_share          share of the dual steps, and constraints, in which `violation_cap` acted

    and by each evaluation, with dropout off: eval_layer_loss/l, eval_violation/l, eval_max_violation, eval_feasible,
    eval_monotone, eval_descent_score. With `load_best_model_at_end` the best feasible checkpoint is kept.

    Example:
        >>> import tempfile, torch
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> from layerdescent.training import DescentConfig
        >>> model = BertForSequenceClassification(
        ...     BertConfig(
        ...         vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8
        ...     )
        ... )
        >>> rows = [{"input_ids": torch.randint(20, (5,)), "labels": i % 2} for i in range(8)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     args = DescentConfig(folder, max_steps=2, use_cpu=True, disable_tqdm=True, save_strategy="no")
        ...     trainer = DescentTrainer(model=model, args=args, train_dataset=rows)
        ...     result = trainer.train()
        {'train_runtime': ...}
        >>> trainer.multipliers.values.shape
        torch.Size([2])
    """
