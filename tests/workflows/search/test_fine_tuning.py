"""Real fine-tuning by TRL: a search over packing and methods, a tiny model, no hub."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import pytest

from analysis import read_run
from workflows.cli.main import main

SPACE = """\
version: 1
model: {base: model/config.json, seq_length: 256}
cluster: {name: box, gpus_per_node: 1, memory_gib: 4, peak_fp32_tflops: 0.1}
trainer:
  adapter: trl
  args: --model_name_or_path HERE/model --dataset_name HERE/data --max_length 256 --use_cpu true
    --dtype float32 --packing_strategy wrapped
tuning: {method: [METHOD], rank: 8, packing: [false, true]}
parameters: {mbs: 4, gas: 2, precision: [fp32]}
objective: {maximize: tokens_per_second}
trial: {warmup_steps: 1, measured_steps: 3}
budget: {trials: 2}
finalists: false
"""
CHAT = "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
TRAINED = {"full": "model.safetensors", "lora": "adapter_model.safetensors"}
TRAINED["qlora"] = TRAINED["lora"]


def tiny(folder: Path) -> None:
    """A Llama with a tokenizer and a chat template, and conversations of uneven lengths."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    texts = [path.read_text() for path in sorted(Path(__file__).parent.glob("*.py"))]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<pad>"]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=1024, special_tokens=special)
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", chat_template=CHAT
    )
    fast.save_pretrained(folder / "model")
    config = transformers.LlamaConfig(
        vocab_size=1024, hidden_size=128, intermediate_size=384, num_hidden_layers=2,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=512,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "model")
    draw, text = random.Random(0), "".join(texts)
    (folder / "data").mkdir()
    with (folder / "data" / "train.jsonl").open("w") as rows:
        for _ in range(200):
            turns = []
            for role in ("user", "assistant"):
                at, length = draw.randrange(len(text)), int(draw.lognormvariate(5, 0.8))
                turns.append({"role": role, "content": text[at : at + length] or "."})
            rows.write(json.dumps({"messages": turns}) + "\n")


@pytest.mark.heavy
@pytest.mark.parametrize("method", TRAINED)
def test_packing_is_compared_by_the_real_tokens_that_trl_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A packed step has more of them, and nothing is taken for sequences of full length."""
    for module in ("trl", "peft", *(["bitsandbytes"] if method == "qlora" else [])):
        pytest.importorskip(module, reason=f"needs {module}, in an environment of its own")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    tiny(tmp_path)
    space = SPACE.replace("HERE", str(tmp_path)).replace("METHOD", method)
    (tmp_path / "tune.yaml").write_text(space)
    assert main(["search", "tune.yaml", "--launcher", "local", "--no-report"]) == 0
    run = read_run(tmp_path / "runs/tune")
    counted = {}
    for number, trial in run.trials.items():
        assert trial.ok and trial.result is not None, trial.message
        counted[trial.config["packing"]] = trial.result["tokens"]
        assert trial.config["tuning"] == method
        saved = [path.name for path in tmp_path.glob(f"runs/tune/trials/{number:04}/output/*")]
        assert [name for name in saved if name.endswith("model.safetensors")] == [TRAINED[method]]
    sequences = 4 * 8  # steps, of eight sequences
    assert counted[False] < 0.8 * counted[True] <= 0.8 * sequences * 256
