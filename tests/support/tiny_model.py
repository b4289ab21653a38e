"""tiny_model.py FOLDER [TRAINER]: a Llama of 0.6 M parameters, tokenizer and uneven rows.

For trainers in environments of their own: it needs torch, safetensors and tokenizers, and of the
trainer's own what ``sentencepieces`` or ``litgpt`` import.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

WIDTH, INNER, LAYERS, HEADS, GROUPS, WORDS = 128, 384, 2, 8, 8, 1024
CHAT = "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
SPECIAL = {"eos_token": "</s>", "pad_token": "<pad>", "bos_token": "<s>"}
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": WORDS,
    "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": WIDTH // HEADS,
    "max_position_embeddings": 512, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "torch_dtype": "float32",
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
}  # fmt: skip


def weights() -> dict[str, Any]:
    """The tensors of Hugging Face's checkpoint."""
    import torch

    torch.manual_seed(0)
    narrow = WIDTH * GROUPS // HEADS
    shapes = {"self_attn.q_proj": (WIDTH, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH)}
    shapes |= {"self_attn.k_proj": (narrow, WIDTH), "self_attn.v_proj": (narrow, WIDTH)}
    shapes |= {"mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH)}
    shapes |= {"mlp.down_proj": (WIDTH, INNER)}
    held = {f"model.layers.{n}.{k}.weight": v for n in range(LAYERS) for k, v in shapes.items()}
    held |= {"model.embed_tokens.weight": (WORDS, WIDTH), "lm_head.weight": (WORDS, WIDTH)}
    norms = [f"model.layers.{n}.{k}" for n in range(LAYERS)
             for k in ("input_layernorm", "post_attention_layernorm")]  # fmt: skip
    tensors = {name: torch.randn(shape) * 0.02 for name, shape in held.items()}
    return tensors | {f"{n}.weight": torch.ones(WIDTH) for n in [*norms, "model.norm"]}


def write(folder: Path) -> None:
    """``model`` and ``data``: rows as messages, and as an instruction with its output."""
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    texts = [path.read_text() for path in sorted(Path(__file__).parent.glob("*.py"))]
    model, data = folder / "model", folder / "data"
    for each in (model, data):
        each.mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<pad>"]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=WORDS, special_tokens=special)
    )
    tokenizer.save(str(model / "tokenizer.json"))
    about = SPECIAL | {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT}
    (model / "tokenizer_config.json").write_text(json.dumps(about))
    (model / "config.json").write_text(json.dumps(CONFIG))
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    save_file(weights(), model / "model.safetensors", {"format": "pt"})
    draw, text = random.Random(0), "".join(texts)
    asked = []
    with (data / "train.jsonl").open("w") as rows:
        for _ in range(200):
            turns = []
            for role in ("user", "assistant"):
                at, length = draw.randrange(len(text)), int(draw.lognormvariate(5, 0.8))
                turns.append({"role": role, "content": text[at : at + length] or "."})
            rows.write(json.dumps({"messages": turns}) + "\n")
            question, answer = (turn["content"] for turn in turns)
            asked.append({"instruction": question, "input": "", "output": answer})
    (folder / "asked.json").write_text(json.dumps(asked))
    (folder / "dataset_info.json").write_text('{"asked": {"file_name": "asked.json"}}')


def sentencepieces(folder: Path) -> None:
    """A tokenizer for torchtune's Llama 2, ``spm.model``."""
    import sentencepiece

    rows = json.loads((folder / "asked.json").read_text())
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([row["instruction"] for row in rows]), vocab_size=WORDS,
        model_prefix=str(folder / "spm"), byte_fallback=True, hard_vocab_limit=False,
        minloglevel=2,
    )  # fmt: skip


def litgpt(folder: Path) -> None:
    """A checkpoint of litgpt's own kind, ``lit/Tiny``."""
    import torch
    import yaml
    from litgpt.config import Config
    from litgpt.model import GPT

    out = folder / "lit" / "Tiny"
    out.mkdir(parents=True)
    config = Config(
        name="Tiny", block_size=512, vocab_size=WORDS, padded_vocab_size=WORDS, n_layer=LAYERS,
        n_head=HEADS, n_query_groups=GROUPS, n_embd=WIDTH, rotary_percentage=1.0,
        parallel_residual=False, bias=False, norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP", intermediate_size=INNER,
    )  # fmt: skip
    torch.save(GPT(config).state_dict(), out / "lit_model.pth")
    known = {each.name: getattr(config, each.name) for each in fields(config) if each.init}
    (out / "model_config.yaml").write_text(yaml.safe_dump(known))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(folder / "model" / name, out)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    for more in {"torchtune": [sentencepieces], "litgpt": [litgpt]}.get(sys.argv[-1], []):
        more(Path(sys.argv[1]))
