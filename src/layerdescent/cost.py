"""What a training step of a causal language model costs, in operations and bytes, before it is run.

Counted are the multiplications and additions of matrix products, 2 for each pair, as `torch.utils.flop_counter` counts
them: attention over the whole square of positions, norms and activations not at all. Everything is a pure function of a
model's shape and of how it is trained; no model is built.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from layerdescent.errors import InputError
from layerdescent.tables import text_table

_TWO_MATRICES = ("gpt2", "gpt_neox", "opt")  # whose feed-forward networks have no gate
_THREE_MATRICES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3")
_GRIDS = (16, 8)
_SHARES = tuple(0.5**power for power in range(1, 8))
_LOGIT_COPIES = 3  # fp32 logits, their log-probabilities and their gradient


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes that a step's cost depends on.

    Attributes:
        layers: L.
        hidden: d, width of a hidden state.
        queries: width of all heads' queries together.
        keys: width of all heads' keys together, and of the values.
        intermediate: width of the feed-forward network.
        gated: whether that has a third matrix, as Llama's has.
        vocabulary: V.
        tied: whether the head's matrix is the embeddings'.
    """

    layers: int
    hidden: int
    queries: int
    keys: int
    intermediate: int
    gated: bool = True
    vocabulary: int
    tied: bool = False

    @classmethod
    def of(cls, config: Any) -> Self:
        """The shape that a transformers configuration describes.

        Raises:
            InputError: a family whose layers are not known here.

        Example:
            >>> from transformers import LlamaConfig
            >>> ModelShape.of(LlamaConfig(num_key_value_heads=8)).keys
            1024
        """
        kind = config.model_type
        if kind not in (*_TWO_MATRICES, *_THREE_MATRICES):
            known = ", ".join((*_THREE_MATRICES, *_TWO_MATRICES))
            raise InputError(f"the cost of a step is modelled for {known}; this model is a {kind}")
        heads = config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        names = ("intermediate_size", "ffn_dim", "n_inner")
        intermediate = next((value for name in names if (value := getattr(config, name, None))), 4 * config.hidden_size)
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            queries=heads * width,
            keys=(getattr(config, "num_key_value_heads", None) or heads) * width,
            intermediate=intermediate,
            gated=kind in _THREE_MATRICES,
            vocabulary=config.vocab_size,
            tied=bool(config.tie_word_embeddings),
        )

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """(in, out) of every matrix of a layer."""
        d, f = self.hidden, self.intermediate
        gate = {"gate": (d, f)} if self.gated else {}
        attention = {"q": (d, self.queries), "k": (d, self.keys), "v": (d, self.keys), "o": (self.queries, d)}
        return {**attention, **gate, "up": (d, f), "down": (f, d)}

    @property
    def parameters(self) -> int:
        """Of all matrices, embeddings and head included; norms, biases and positions are left aside."""
        layer = sum(rows * columns for rows, columns in self.matrices.values())
        return self.layers * layer + self.hidden * self.vocabulary * (1 if self.tied else 2)


@dataclass(frozen=True, kw_only=True)
class Step:
    """How one batch is trained on.

    Attributes:
        sequences: rows of the batch, padded to one length.
        length: tokens of a row.
        responses: share of the tokens that have a label.
        lora: rank of the adapters on all matrices but the head; None trains everything.
        checkpointing: whether layers are computed again in the backward pass (adapters make the embeddings' output
            require a gradient then, as PEFT does).
        bytes_each: of a number of the model: 2 for bf16, 4 for fp32.
    """

    sequences: int
    length: int
    responses: float = 1.0
    lora: int | None = None
    checkpointing: bool = False
    bytes_each: int = 2

    def __post_init__(self) -> None:
        """Check every field."""
        if self.sequences < 1 or self.length < 1 or not 0 < self.responses <= 1 or (self.lora or 1) < 1:
            raise InputError(
                f"a step of {self.sequences} sequences of {self.length} tokens, a share of {self.responses:g} of them "
                f"with labels, and rank {self.lora}: counts must be at least 1 and the share in (0, 1]"
            )

    @property
    def tokens(self) -> int:
        """All tokens of the batch."""
        return self.sequences * self.length

    @property
    def labels(self) -> float:
        """Tokens that the head reads for the objective."""
        return self.responses * self.tokens


@dataclass(frozen=True, kw_only=True)
class Mode:
    """Which layers are read for the constraints, and how much of them.

    Attributes:
        layers: the layers below the last that are read, from 0 (embeddings) to L - 1; none is plain training.
        token_share: of the tokens with labels, those that constraints are measured on. Below 1 the last layer is read
            on them once more, for its violation is measured on the tokens of the layer below.
        inactive: share of these layers whose weight is 0: they are read forward only.
        refresh: layers of weight 0 are read every so many steps.
    """

    layers: tuple[int, ...] = ()
    token_share: float = 1.0
    inactive: float = 0.0
    refresh: int = 1

    def __post_init__(self) -> None:
        """Check every field."""
        if not 0 < self.token_share <= 1 or not 0 <= self.inactive <= 1 or self.refresh < 1:
            raise InputError(
                f"token_share is {self.token_share:g}, inactive {self.inactive:g} and refresh {self.refresh}: they "
                "must lie in (0, 1], in [0, 1], and be at least 1"
            )

    @classmethod
    def grid(cls, shape: ModelShape, count: int, token_share: float = 1.0) -> Self:
        """So many layers, evenly spread, the last one among them but not named.

        Example:
            >>> shape = ModelShape(layers=32, hidden=8, queries=8, keys=8, intermediate=8, vocabulary=9)
            >>> Mode.grid(shape, 8).layers
            (4, 8, 12, 16, 20, 24, 28)
        """
        if not 1 <= count <= shape.layers:
            raise InputError(f"{count} layers are to be read, and the model has {shape.layers}")
        return cls(layers=tuple(round(shape.layers * at / count) for at in range(1, count)), token_share=token_share)

    def words(self, shape: ModelShape) -> str:
        """What a table calls it."""
        if not self.layers:
            return "plain training"
        count = len(self.layers) + 1
        what = "all layers" if len(self.layers) >= shape.layers - 1 else f"{count} layers"
        tokens = "" if self.token_share == 1 else f", 1/{1 / self.token_share:.0f} of the tokens"
        refresh = "" if self.refresh == 1 else f", inactive ones every {self.refresh} steps"
        return what + tokens + refresh


def all_layers(shape: ModelShape) -> Mode:
    """Every layer from the embeddings to the last one, on all tokens: exact."""
    return Mode(layers=tuple(range(shape.layers)))


def step_flops(shape: ModelShape, step: Step, mode: Mode = Mode()) -> int:
    """Operations of one forward and backward pass with the layers read by the mode.

        layers     2 N (matrices + adapters) forward; as much again for gradients of what was read, except in the first
                   layer where nothing below learns; as much again for gradients of weights that learn
        attention  4 N S (queries) forward, twice that backward
        head       2 n d V forward for each layer read on n tokens; as much again where something learns below it, and
                   as much again where the head learns

    With checkpointing the layers' forward pass is counted again, but for the last product of each, which nothing needs.

    Args:
        shape: of the model.
        step: how it is trained.
        mode: which layers are read, with a fused head (`layerdescent.readout.fused`), that leaves tokens without
            labels out; plain training by default.

    Returns:
        Operations, all matrix products.

    Source: counting as usual, e.g. Kaplan et al. 2020 [C]; checked against `FlopCounterMode`.

    Example:
        >>> shape = ModelShape(layers=2, hidden=8, queries=8, keys=8, intermediate=16, vocabulary=50)
        >>> step = Step(sequences=1, length=4)
        >>> round(step_flops(shape, step, all_layers(shape)) / step_flops(shape, step), 2)
        1.44
    """
    return round(_backbone_flops(shape, step) + _head_flops(shape, step, mode))


def flops_ratio(shape: ModelShape, step: Step, mode: Mode) -> float:
    """Operations of a step beside those of plain training with the same fused head."""
    return step_flops(shape, step, mode) / step_flops(shape, step)


def _backbone_flops(shape: ModelShape, step: Step) -> float:
    N, r, matrices = step.tokens, step.lora, shape.matrices
    dense = sum(2 * N * rows * columns for rows, columns in matrices.values())
    adapters = sum(2 * N * r * (rows + columns) for rows, columns in matrices.values()) if r else 0
    attention = 4 * N * step.length * shape.queries
    weights = adapters if r else dense
    layer = (dense + adapters + attention) + (dense + adapters + 2 * attention) + weights
    total = float(shape.layers * layer)
    if r and not step.checkpointing:  # nothing learns below the first layer's queries, keys and values
        total -= sum(2 * N * matrices[name][0] * (matrices[name][1] + r) for name in ("q", "k", "v"))
    if step.checkpointing:
        last = 2 * N * (r * shape.hidden if r else shape.intermediate * shape.hidden)
        total += shape.layers * (dense + adapters + attention - last)
    return total


def _head_flops(shape: ModelShape, step: Step, mode: Mode) -> float:
    once = 2 * shape.hidden * shape.vocabulary
    of_head = 0 if step.lora else once  # the gradient of the head's own matrix
    n = mode.token_share * step.labels
    total = step.labels * (2 * once + of_head)
    if mode.layers and mode.token_share < 1:
        total += n * (2 * once + of_head)
    for layer in mode.layers:
        learns_below = layer > 0 or not step.lora or step.checkpointing
        active = n * (once + (once if learns_below else 0) + of_head)
        total += (1 - mode.inactive) * active + mode.inactive * n * once / mode.refresh
    return total


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes at the peak of a step, by what takes them.

    Attributes:
        weights: of the model, adapters included.
        gradients: of what learns, with fp32 sums of the head's own where that learns.
        optimizer: two moments of Adam for what learns.
        activations: what the backward pass through the layers needs, hidden states included.
        readouts: gradients of the hidden states that are read.
        logits: of a chunk, or of all layers where the head is not fused.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    readouts: float
    logits: float

    @property
    def total(self) -> float:
        """The sum: an upper bound, for not everything is there at one moment."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.readouts + self.logits


def step_memory(
    shape: ModelShape, step: Step, mode: Mode = Mode(), *, max_logits: int = 2**25, fused: bool = True
) -> Memory:
    """Bytes of one step on one device, nothing sharded or offloaded.

    Moments and gradients have the precision of what learns; adapters are fp32, as PEFT makes them. Activations are
    those of a Llama-like layer with an attention that does not keep its scores, and an estimate.

    Args:
        shape: of the model.
        step: how it is trained.
        mode: which layers are read.
        max_logits: logits that a chunk holds.
        fused: False keeps the logits of all layers and all positions, as the plain way does.

    Source: what each module keeps for its backward pass, summed [C].

    Example:
        >>> shape = ModelShape(layers=2, hidden=8, queries=8, keys=8, intermediate=16, vocabulary=50)
        >>> step = Step(sequences=1, length=4)
        >>> every = all_layers(shape)
        >>> step_memory(shape, step, every, fused=False).logits > step_memory(shape, step, fused=False).logits
        True
    """
    N, b, d, V = step.tokens, step.bytes_each, shape.hidden, shape.vocabulary
    adapters = shape.layers * (step.lora or 0) * sum(rows + columns for rows, columns in shape.matrices.values())
    learning = 4 * adapters if step.lora else b * shape.parameters
    layer = N * _kept_by_a_layer(shape, step)
    kept = shape.layers * N * d * b
    activations = kept + layer if step.checkpointing else shape.layers * layer
    read = len(mode.layers) + 1
    rows = step.labels * (1 + (mode.token_share * read if mode.token_share < 1 else len(mode.layers)))
    in_chunk = min(max_logits, rows * V) if fused else read * N * V
    return Memory(
        weights=b * shape.parameters + 4 * adapters,
        gradients=learning + (0 if step.lora else 4 * d * V),
        optimizer=2 * learning,
        activations=activations,
        readouts=b * d * rows,
        logits=in_chunk * (b + 4 * _LOGIT_COPIES),
    )


def _kept_by_a_layer(shape: ModelShape, step: Step) -> int:
    """Bytes a token: the fp32 inputs of both norms, what attention and activation need, and what matrices are given."""
    b, d, f, wide = step.bytes_each, shape.hidden, shape.intermediate, 3 if shape.gated else 1
    inner = 2 * 4 * d + b * (shape.queries + 2 * shape.keys + wide * f)
    if not step.lora:  # both norms keep their product and what they give; attention's output, and the network's
        return inner + b * (4 * d + shape.queries + f)
    if b >= 4:  # matrices of one input share what their adapters keep of it
        return inner + b * (2 * d + shape.queries + f)
    return inner + 4 * sum(rows for rows, _ in shape.matrices.values())  # each adapter its own copy, in fp32


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A mode that a budget allows.

    Attributes:
        mode: it.
        ratio: its operations beside plain training's.
        why: one sentence.
        considered: the modes that were looked at before, with their ratios.
    """

    mode: Mode
    ratio: float
    why: str
    considered: tuple[tuple[Mode, float], ...]


def plan_budget(shape: ModelShape, step: Step, budget: float = 1.1, *, min_tokens: int = 16) -> Plan:
    """Choose how to read layers so that a step stays within a budget, as exactly as that allows.

    In this order, the first within the budget: all layers on all tokens (exact); 16, then 8 layers on all tokens (exact
    on the grid, where alpha compounds over the layers left out); 8 layers on a half, a quarter … of the tokens (right
    on average, see `layerdescent.readout.sampling`); 4 layers likewise.

    Args:
        shape: of the model.
        step: how it is trained.
        budget: operations beside those of plain training with the same fused head, above 1.
        min_tokens: tokens a step that constraints are measured on, at least.

    Raises:
        InputError: a budget not above 1, or one that nothing meets.

    Source: the order is ours [C].

    Example:
        >>> shape = ModelShape(
        ...     layers=32, hidden=4096, queries=4096, keys=1024, intermediate=14336, vocabulary=128256
        ... )
        >>> plan = plan_budget(shape, Step(sequences=8, length=1024, lora=16))
        >>> plan.mode.words(shape), round(plan.ratio, 3)
        ('8 layers, 1/8 of the tokens', 1.066)
    """
    if not budget > 1:
        raise InputError(f"the budget is {budget:g}: plain training costs 1, so give more")
    grids = [count for count in _GRIDS if count < shape.layers]
    few = sorted({min(8, shape.layers), min(4, shape.layers)}, reverse=True)
    exact = [all_layers(shape), *(Mode.grid(shape, count) for count in grids)]
    sampled = [Mode.grid(shape, count, share) for count in few for share in _SHARES]
    enough = [mode for mode in sampled if mode.token_share * step.labels >= min_tokens]
    considered: list[tuple[Mode, float]] = []
    for mode in (*exact, *enough):
        ratio = flops_ratio(shape, step, mode)
        if ratio <= budget:
            kind = "exact" if mode in exact[:1] else "exact on its grid" if mode in exact else "right on average"
            before = (
                f"{considered[-1][0].words(shape)} would take {considered[-1][1]:.2f}" if considered else "the best"
            )
            why = f"{mode.words(shape)}: {ratio:.3f} of plain training's operations, {kind}; {before}"
            return Plan(mode=mode, ratio=ratio, why=why, considered=tuple(considered))
        considered.append((mode, ratio))
    cheapest = min(considered, key=lambda pair: pair[1])
    raise InputError(
        f"no mode stays within {budget:g} of plain training: the cheapest, {cheapest[0].words(shape)}, takes "
        f"{cheapest[1]:.3f}; raise the budget, or the tokens of a batch"
    )


def cost_table(shape: ModelShape, step: Step, modes: Sequence[Mode]) -> str:
    """Operations and memory of modes beside plain training's, as text.

    Example:
        >>> shape = ModelShape(layers=4, hidden=64, queries=64, keys=64, intermediate=128, vocabulary=999)
        >>> cost_table(shape, Step(sequences=2, length=64), [all_layers(shape)]).splitlines()[2].split()[:5]
        ['all', 'layers', '0.000397', 'T', '1.982']
    """
    plain = step_memory(shape, step)
    rows = []
    for mode in (Mode(), *modes):
        memory = step_memory(shape, step, mode)
        rows.append(_row(mode.words(shape), shape, step, mode, memory, plain))
    naive = all_layers(shape)
    rows.append(
        _row(
            "all layers, all logits kept",
            shape,
            replace(step, responses=1.0),
            naive,
            step_memory(shape, step, naive, fused=False),
            plain,
        )
    )
    header = ["a step of", "operations", "ratio", "memory", "ratio", "weights", "learning", "activations", "head"]
    return text_table(header, rows)


def _row(words: str, shape: ModelShape, step: Step, mode: Mode, memory: Memory, plain: Memory) -> list[str]:
    flops = step_flops(shape, step, mode)
    return [
        words,
        f"{flops / 1e12:.3g} T",
        f"{flops / step_flops(shape, step):.3f}",
        _gib(memory.total),
        f"{memory.total / plain.total:.2f}",
        _gib(memory.weights),
        _gib(memory.gradients + memory.optimizer),
        _gib(memory.activations),
        _gib(memory.readouts + memory.logits),
    ]


def _gib(size: float) -> str:
    return f"{size / 2**30:.3g} GiB"
