"""Answers of a causal language model to prompts, with or without noise on what it reads.

    prompts -> token ids -> batches, the longest first -> greedy decoding under a perturbation -> a journal -> one file

`prompts` reads and chooses, `decoding` answers in memory, `writing` keeps answers so that a stopped run goes on.
"""

from layerdescent.generation.decoding import Answer, generate_answers
from layerdescent.generation.prompts import Prompt, read_prompts, sample_prompts
from layerdescent.generation.writing import Written, write_answers

__all__ = ["Answer", "Prompt", "Written", "generate_answers", "read_prompts", "sample_prompts", "write_answers"]
