"""Programs that speak OpenAI's completions API use `minigpt serve` unchanged."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from serving_texts import TEXTS

pytestmark = pytest.mark.serving

GREEDY: dict[str, Any] = {"model": "whale", "prompt": "Call me", "max_tokens": 12, "temperature": 0}


def expected_text(served: Any) -> str:
    return served.ask(**GREEDY)["choices"][0]["text"]


# The openai package for Python


@pytest.fixture
def openai_client(served: Any) -> Any:
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def test_openai_completes_and_streams(served: Any, openai_client: Any) -> None:
    answer = openai_client.completions.create(**GREEDY)
    assert answer.choices[0].text == expected_text(served)
    assert answer.usage.completion_tokens == 12
    pieces = list(openai_client.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True}))
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == expected_text(served)
    assert pieces[-1].usage.total_tokens == answer.usage.total_tokens
    several = openai_client.completions.create(**{**GREEDY, "prompt": TEXTS}, n=2, best_of=3, seed=1)
    assert len(several.choices) == 2 * len(TEXTS)
    assert [model.id for model in openai_client.models.list()] == ["whale"]
    assert openai_client.models.retrieve("whale").id == "whale"


def test_openai_gets_log_probabilities_of_the_prompt(served: Any, openai_client: Any) -> None:
    answer = openai_client.completions.create(**GREEDY, echo=True, logprobs=2)
    scores = answer.choices[0].logprobs
    assert "".join(scores.tokens) == answer.choices[0].text == "Call me" + expected_text(served)
    assert scores.token_logprobs[0] is None
    assert all(logprob <= 0 for logprob in scores.token_logprobs[1:])
    assert scores.text_offset[0] == 0


def test_openai_understands_the_errors(openai_client: Any) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="context length"):
        openai_client.completions.create(**{**GREEDY, "max_tokens": 1000})
    with pytest.raises(openai.NotFoundError, match="not served"):
        openai_client.completions.create(**{**GREEDY, "model": "other"})
    with pytest.raises(openai.BadRequestError, match="/v1/completions"):
        openai_client.chat.completions.create(model="whale", messages=[{"role": "user", "content": "hi"}])


# Other clients


def test_langchain_completes_and_streams(served: Any) -> None:
    langchain = pytest.importorskip("langchain_openai")
    client = langchain.OpenAI(base_url=f"{served.url}/v1", api_key="none", model="whale", max_tokens=12, temperature=0)
    assert client.invoke("Call me") == expected_text(served)
    assert "".join(client.stream("Call me")) == expected_text(served)


def test_llm_uses_the_model_without_a_plugin(served: Any, tmp_path: Path) -> None:
    pytest.importorskip("llm")
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: whale\n  model_name: whale\n  api_base: {served.url}/v1\n  completion: true\n"
    )
    program = Path(sys.executable).with_name("llm")
    command = [str(program), "-m", "whale", "-o", "max_tokens", "12", "-o", "temperature", "0", "--no-log", "Call me"]
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    for option in ([], ["--no-stream"]):
        done = subprocess.run([*command, *option], capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == expected_text(served).strip()


def test_curl_completes(served: Any) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    url = f"{served.url}/v1/completions"
    command = ["curl", "-sS", url, "-H", "Content-Type: application/json", "-d", json.dumps(GREEDY)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["choices"][0]["text"] == expected_text(served)


def test_the_npm_package_completes_and_streams(served: Any, tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    (tmp_path / "package.json").write_text('{"type": "module", "private": true}')
    npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "openai@7"]
    installed = subprocess.run(npm, cwd=tmp_path, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"npm cannot install openai: {installed.stderr.strip()[-200:]}")
    (tmp_path / "client.js").write_text(
        f"""import OpenAI from "openai";
const client = new OpenAI({{ baseURL: "{served.url}/v1", apiKey: "none" }});
const body = {json.dumps(GREEDY)};
const whole = await client.completions.create({{ ...body, logprobs: 1, echo: true }});
let streamed = "";
for await (const piece of await client.completions.create({{ ...body, stream: true }}))
  streamed += piece.choices[0]?.text ?? "";
console.log(JSON.stringify([whole.choices[0].text, whole.choices[0].logprobs.tokens.length, streamed]));
"""
    )
    done = subprocess.run(["node", "client.js"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text, count, streamed = json.loads(done.stdout)
    assert (text, streamed) == ("Call me" + expected_text(served), expected_text(served))
    assert count == len(served.tokenizer.encode("Call me")) + 12


def test_schemathesis_finds_no_error_of_the_server(served: Any, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis")
    program = Path(sys.executable).with_name("schemathesis")
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    command = [
        str(program), "run", f"{served.url}/openapi.json", "--checks", checks, "--max-examples", "40", "--seed", "1",
        "--phases", "examples,coverage,fuzzing", "--no-color",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    assert served.ask(**GREEDY)
