"""Make a small Llama with random weights and a tokenizer of its own: make_model.py DIRECTORY.

No hub is asked: 198 MB of fp32 weights come from a fixed seed, and the byte-level BPE is trained
on the standard library's sources.
"""

import sys
import sysconfig
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 32_000
END_OF_TEXT = "<|end|>"


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the standard library's own sources."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = Path(sysconfig.get_path("stdlib")).glob("[a-z]*/*.py")
    tokenizer.train(sorted(str(p) for p in sources if "-packages" not in p.parent.name), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT)


def make_model(end_of_text_id: int) -> LlamaForCausalLM:
    """Make the model: 4 layers, hidden size 512, input and output embeddings apart."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=4,
        num_attention_heads=8,
        max_position_embeddings=2048,
        bos_token_id=end_of_text_id,
        eos_token_id=end_of_text_id,
        torch_dtype=torch.float32,
    )
    return LlamaForCausalLM(config)


def main() -> None:
    directory = Path(sys.argv[1])
    tokenizer = train_tokenizer()
    make_model(tokenizer.eos_token_id).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


if __name__ == "__main__":
    main()
