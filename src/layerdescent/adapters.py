"""Adapters in folders: which model one is for, loading it onto that model, and putting new ones on a model."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from layerdescent.errors import InputError, RunError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def adapter_base(folder: Any) -> tuple[str, str | None] | None:
    """The model that an adapter is for, by path or hub name, and its revision; None where a folder holds no adapter.

    Args:
        folder: A path; anything else is no adapter.

    Raises:
        RunError: The adapter's configuration is damaged or names no model.

    Example:
        >>> adapter_base("no-such-folder") is None
        True
    """
    path = Path(str(folder)) / CONFIG
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return str(config["base_model_name_or_path"]), config.get("revision")
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise RunError(f"{path} is damaged or names no base model ({error}): save the adapter again") from None


def load_adapter(model: nn.Module, folder: str | Path) -> nn.Module:
    """Put an adapter on the model it is for; merged, unless the weights are of 16 bits, which merging would round.

    Args:
        model: The base model.
        folder: The adapter, as `save_pretrained` of PEFT wrote it.

    Raises:
        InputError: PEFT is not installed, or the adapter is for another model.
        RunError: The adapter is damaged.
    """
    peft = _peft()
    from safetensors import SafetensorError

    try:
        adapted: Any = peft.PeftModel.from_pretrained(model, str(folder))
    except (SafetensorError, OSError) as error:
        raise RunError(f"the adapter at {folder} is damaged ({_line(error)}): save it again") from None
    except (RuntimeError, ValueError, KeyError) as error:
        raise InputError(
            f"the adapter at {folder} does not fit {type(model).__name__}, which it was given for: it was made for "
            f"another base ({_line(error)})"
        ) from None
    wide = all(parameter.element_size() >= 4 for parameter in adapted.parameters())
    return adapted.merge_and_unload() if wide else adapted


def add_lora(model: nn.Module, *, r: int, alpha: float, dropout: float, targets: str | list[str]) -> nn.Module:
    """A model with fresh low-rank adapters that learn, and everything else frozen.

    Args:
        model: A causal language model.
        r: Rank of the adapters.
        alpha: Their scale is alpha / r.
        dropout: On what an adapter reads, in training.
        targets: Names of the layers, or "all-linear" for all but the head.

    Raises:
        InputError: PEFT is not installed, or no layer has such a name.

    Source: LoRA, Hu et al. 2021.
    """
    peft = _peft()
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=r, lora_alpha=alpha, lora_dropout=dropout, target_modules=targets)
    try:
        return peft.get_peft_model(model, config)
    except ValueError as error:
        raise InputError(f"model.lora.targets is {targets!r}: {_line(error)}") from None


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise InputError("adapters need PEFT, which is not installed: pip install 'layerdescent[peft]'") from None
    return peft


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
