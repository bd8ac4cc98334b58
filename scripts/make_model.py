"""Make a small Llama with random weights and a tokenizer of its own: make_model.py DIRECTORY.

No hub is asked: 198 MB of fp32 weights (by default) come from a fixed seed, and the byte-level BPE
is trained on the standard library's sources.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HEAD_SIZE = 64
END_OF_TEXT = "<|end|>"


def train_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the standard library's own sources."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = Path(sysconfig.get_path("stdlib")).glob("[a-z]*/*.py")
    tokenizer.train(sorted(str(p) for p in sources if "-packages" not in p.parent.name), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT)


def make_model(sizes: argparse.Namespace, end_of_text_id: int) -> LlamaForCausalLM:
    """Make the model: input and output embeddings apart."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=4 * sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.hidden // HEAD_SIZE,
        max_position_embeddings=2048,
        bos_token_id=end_of_text_id,
        eos_token_id=end_of_text_id,
        torch_dtype=torch.float32,
    )
    return LlamaForCausalLM(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=512, help=f"a multiple of {HEAD_SIZE}")
    parser.add_argument("--vocabulary", type=int, default=32_000)
    sizes = parser.parse_args()
    tokenizer = train_tokenizer(sizes.vocabulary)
    make_model(sizes, tokenizer.eos_token_id).save_pretrained(sizes.directory)
    tokenizer.save_pretrained(sizes.directory)


if __name__ == "__main__":
    main()
