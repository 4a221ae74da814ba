"""What a user cannot have: each wrong command is one sentence on stderr, prints nothing else and changes no file."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from builders import new_model

from minigpt.storage.checkpoint import save_checkpoint
from minigpt.tokenizer.tokenizer import Tokenizer

EXPORT = "export m/one --to"
REFUSED = [
    ("corpus missing.txt", "missing.txt does not exist"),
    ("corpus empty.txt", "empty.txt contains no text"),
    ("corpus nothing", "nothing has no text file"),
    ("corpus picture.png", "picture.png is not text: it contains zero bytes"),
    ("corpus *.md", "*.md matches no file"),
    ("corpus rows.jsonl", "rows.jsonl, line 1 has no key 'text'"),
    ("corpus fox.txt --model nobody", "no model 'nobody'"),
    ("corpus fox.txt --validation-fraction 2", "--validation-fraction (2.0) must be at most 0.5"),
    ("evaluate nobody fox.txt", "no model 'nobody'"),
    ("evaluate m/one lambda", "'lambda' is neither a file nor a benchmark (lambada, hellaswag"),
    ("evaluate m/one lambda", "did you mean 'lambada'?"),
    ("evaluate m/one HellaSwag", "did you mean 'hellaswag'?"),
    ("evaluate m/one squad", "'squad' is neither a file nor a benchmark (lambada"),
    (f"evaluate m/one '{'a pasted passage ' * 20}'", "'a pasted passage "),
    (f"evaluate m/one '{'A pasted passage. ' * 20}'", "A pasted passage. "),
    ("evaluate m/one missing.txt", "missing.txt does not exist"),
    ("evaluate m/one binary.bin", "binary.bin is not"),
    ("evaluate m/one empty.txt", "empty.txt contains no text"),
    ("evaluate m/one fox.txt --stride 17", "--stride (17) must be from 1 to the context"),
    ("evaluate m/one lambada --data nowhere", "--data nowhere does not exist; pass a file of lambada"),
    ("evaluate m/one lambada --data .", "contains no file of lambada; expected one named lambada_test.jsonl"),
    ("evaluate m/one hellaswag --data passages.jsonl", "passages.jsonl, line 1 is not a question of HellaSwag; expect"),
    ("evaluate m/one wikitext2 --data fox.txt", "fox.txt, line 1 is 'the quick"),
    ("evaluate m/one lambada --data passages.jsonl --context-length 17", "--context-length (17) must be from 1 to"),
    ("evaluate m/one lambada --stride 3", "--stride has no effect on lambada"),
    ("evaluate m/one lambada --text-key a --encoding cp1252", "--text-key and --encoding can only be given with a"),
    ("evaluate m/one lambada --by-position", "--by-position is only for texts; name one"),
    ("evaluate m/one lambada hellaswag --detokenize", "--detokenize is only for wikitext2, wikitext103, ptb and cbt"),
    ("evaluate m/one fox.txt --data passages.jsonl", "--data is only for benchmarks; name one"),
    ("evaluate m/one fox.txt --json --markdown", "--json and --markdown exclude each other"),
    ("evaluate m/one", "there is no text to evaluate"),
    ("evaluate m/one lambada --held-out", "--held-out cannot be combined with lambada"),
    ("evaluate m/one --held-out --encoding cp1252", "--encoding can only be given with a text; name one"),
    ("evaluate m/one --held-out --limit 3", "--limit 3 cannot be combined with --held-out"),
    (f"{EXPORT} tflite", "--to ('tflite') must be one of gguf, onnx, ctranslate2"),
    (
        f"{EXPORT} hf",
        "`hf upload USER/one m/one . --exclude 'last/*' --exclude 'teacher/*' --exclude training.json",
    ),
    (f"{EXPORT} gguf --dtype q4_0", "--dtype ('q4_0') must be one of f32, f16, bf16, q8_0 for gguf"),
    (f"{EXPORT} onnx --dtype f16", "--dtype ('f16') must be f32 for onnx"),
    (f"{EXPORT} gguf -o m/one/model.safetensors --force", "must end in .gguf"),
    (f"{EXPORT} onnx -o fox.txt --force", "must be a separate folder"),
    (f"{EXPORT} onnx -o / --force", "must be a separate folder"),
    (f"{EXPORT} onnx -o m/one --force", "is the model to export"),
    (f"{EXPORT} ctranslate2 -o m/../m/one --force", "is the model to export"),
    (f"{EXPORT} ctranslate2 -o m --force", "has no model.bin, so it is not an earlier"),
    (f"{EXPORT} gguf -o {'x' * 300}.gguf", "could not be written (file name too long)"),
    (f"{EXPORT} onnx -o {'x' * 300}", "could not be written (file name too long)"),
    (f"{EXPORT} ctranslate2 -o {'y/' * 3000}", "could not be written (file name too long)"),
    ("generate x --model nobody", "no model 'nobody'"),
    ("generate x --temperature -1", "--temperature (-1.0) must be at least 0"),
    ("generate x --top-p 0", "--top-p (0.0) must be above 0"),
    ("generate x --samples 0", "--samples (0) must be at least 1"),
    ("generate x --prompt-file y.txt", "a prompt cannot be combined with --prompt-file"),
    ("generate --prompt-file missing.txt", "missing.txt cannot be read"),
    ("generate x --prompt-format lines", "--prompt-format lines describes a file"),
    ("generate x --context keep-last:3", "--context ('keep-last:3') must be slide or keep-first:N"),
    ("generate x --min-new-tokens 300", "--min-new-tokens (300) must be at most --max-new-tokens (200)"),
    ("generate x --copied-words 8", "--copied-words 8 needs --memorization"),
    ("generate x --alternatives 0", "--alternatives 0 needs --json or --table"),
    ("generate x --alternatives 3 --explain", "--alternatives 3 needs --json or --table"),
    ("generate x --beams 2 --draft y", "--beams (2) cannot be combined with --draft"),
    ("generate x --beams 2 --json --alternatives 3", "--alternatives 3 cannot be combined with --beams"),
    ("generate x --best-of 0", "--best-of (0) must be at least 1"),
    ("generate x --best-of 2 --samples 3", "--samples (3) must be at most --best-of (2)"),
    ("generate x --best-of 2 --beams 2", "--beams (2) cannot be combined with --best-of (2)"),
    ("generate x --best-of 2 --temperature 0", "--best-of (2) needs a temperature above 0"),
    ("generate x --device tpu", "--device ('tpu')"),
    ("generate x --explain --json", "--explain cannot be combined with --json"),
    ("generate x --table --memorization", "--table cannot be combined with --memorization"),
    ("generate x --table --beams 2", "--table cannot be combined with --beams"),
    ("generate abc -m m/one --stop ''", "--stop ('') must be a text to stop before"),
    ("generate abc -m m/one --context keep-first:99", "keep-first (99) must be at most half the context length (8)"),
    ("generate abc -m m/one --logit-bias #999=1", "--logit-bias of #999 must be for an id from 0 to 256"),
    ("generate abc -m m/one --beams 2 --max-new-tokens 14", "the context (16) together; give a --max-new-tokens of at"),
    ("info nobody", "no model 'nobody'"),
    ("inspect m/one ''", "the text is empty: give one after the model's name, or with --file (- for standard input)"),
    ("inspect m/one", "the text is empty: give one after the model's name, or with --file (- for standard input)"),
    ("inspect m/one a --file x.txt", "a text cannot be combined with --file; give one of the two"),
    ("inspect m/one --file no", "no cannot be read (No such file or directory); give a text file, or - for standard"),
    ("inspect m/one a --png x.png", "--png draws one attention map: give its --layer and --head, both counted from 0"),
    ("inspect m/one a --json --table", "--json cannot be combined with --table; give one of the two"),
    ("inspect m/one a --head 1", "--layer and --head choose an attention map: give --png FILE or --html FILE too"),
    ("inspect m/one a --html x.html --layer 2", "--layer (2) must be from 0 to 1 for this model"),
    ("inspect m/one a --png x.png --layer 0 --head -1", "--head (-1) must be from 0 to 1 for this model"),
    ("inspect m/one a --html no/x.html", "no/x.html could not be written: the folder no does not exist; create it"),
    ("load-gpt2 gpt3", "gpt3"),
    ("load-gpt2 --from nowhere", "nowhere does not exist"),
    ("report", "there is no run in checkpoints to report"),
    ("report a b c", "a page compares at most two runs, not 3"),
    ("report m/one", "holds no training run"),
    ("train", "no text to train on"),
    ("train fox.txt --plan --resume", "--plan cannot be combined with --resume"),
    ("train missing.txt", "missing.txt"),
    ("train empty.txt", "empty"),
    ("train latin.txt", "byte 3"),
    ("train fox.txt --preset huge", "--preset ('huge') must be one of gpt2, "),
    ("train fox.txt --tokenizer words", "words"),
    ("train fox.txt --steps 5 --minutes 1", "--steps (5) and --minutes (1) cannot be combined"),
    ("train fox.txt --steps 0", "--steps (0) must be at least 1"),
    ("train fox.txt --dropout 1.5", "--dropout (1.5) must be below 1"),
    ("train fox.txt --n-embd 30 --n-head 4", "--n-embd (30) must be divisible by --n-head (4)"),
    ("train fox.txt --device cuda:77", "--device ('cuda:77') is not on this machine"),
    ("train fox.txt --device tpu", "--device ('tpu') must be"),
    ("train fox.txt --from nobody", "no model 'nobody'"),
    ("train --resume --name nothing", "there is no run 'nothing' in checkpoints"),
    ("train --resume", "there is no run in checkpoints to resume"),
    ("train fox.txt --validation-fraction 2", "--validation-fraction (2.0) must be at most 0.5"),
    ("train fox.txt --epochs inf", "--epochs (inf) must be a finite number"),
    ("train fox.txt --batch-size 5 --batch-tokens 70", "--batch-size (5) cannot be combined with --batch-tokens (70)"),
    ("train fox.txt --name a/b", "--name ('a/b') must be a plain folder name in checkpoints"),
    ("train fox.txt --name ..", "--name ('..') must be a plain folder name"),
    ("train fox.txt --name ''", "--name ('') must be a plain folder name"),
    (f"train fox.txt --plan --name {'x' * 300}", f"name ('{'x' * 20}' …) has 300 bytes; it must have at most 200"),
    ("train --mix web.jsonl=0", "the weight of web.jsonl is '0'; it must be a number above 0"),
    ("train --mix web.jsonl=-1", "the weight of web.jsonl is '-1'; it must be a number above 0"),
    ("train --mix web.jsonl=inf", "it must be a number above 0"),
    ("train --mix web.jsonl=1 film.txt=1", "film.txt does not exist"),
    ("train --prepare", "there is no text to prepare"),
    ("train fox.txt --from m/one --lora --lora-rank 0", "--lora-rank (0) must be at least 1"),
    ("train fox.txt --from m/one --lora --lora-rank 17", "--lora-rank (17) must be at most the model's width (16)"),
    ("train fox.txt --from m/one --lora --lora-targets c_attn", "--lora-targets ('c_attn') must be all, or some of"),
    ("train fox.txt --from m/one --lora --lora-alpha 0", "--lora-alpha (0.0) must be above 0"),
    ("train fox.txt --from m/one --lora-rank 4", "--lora-rank (4) needs --lora"),
    ("train fox.txt --lora", "--lora (True) needs --from"),
    ("train fox.txt --freeze 1", "--freeze (1) needs --from"),
    ("train fox.txt --from m/one --freeze 2", "--freeze (2) must be below the model's number of blocks (2)"),
    ("train fox.txt --from m/one --lora-embedding", "--lora-embedding (True) needs --lora"),
    ("train fox.txt --from m/one --lora --lora-embedding --freeze 1", "--lora-embedding (on) cannot be combined with"),
    ("train fox.txt --from m/one --lora --sharding on", "--lora (on) cannot be combined with --sharding (on)"),
]


def files(folder: Path) -> dict[Path, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and "cache" not in path.parts)
    return {path: path.read_bytes() for path in found}


@pytest.mark.parametrize(("command", "message"), REFUSED, ids=[command[:60] for command, _ in REFUSED])
def test_a_wrong_command_is_one_sentence_and_changes_no_file(run: Any, here: Path, command: str, message: str) -> None:
    if command.startswith("export"):
        pytest.importorskip("gguf")
    save_checkpoint("m/one", new_model(), Tokenizer.named("bytes"))
    (here / "nothing").mkdir()
    for name, content in {
        "empty.txt": b"",
        "latin.txt": b"caf\xe9 au lait",
        "picture.png": b"\x89PNG\r\n\0\0",
        "binary.bin": bytes(range(256)),
        "rows.jsonl": b'{"body": "x"}\n',
        "web.jsonl": b'{"text": "a page"}\n',
        "passages.jsonl": b'{"text": "the fox"}\n',
    }.items():
        (here / name).write_bytes(content)
    before = files(here)
    result = run(*shlex.split(command))
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr
    assert result.stderr.startswith("minigpt: ")
    assert result.stderr.count("\n") == 1, result.stderr
    assert files(here) == before
