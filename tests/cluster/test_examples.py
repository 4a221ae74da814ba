"""The examples for Kubernetes, SkyPilot and Ray, as far as these check them; see `make test-launchers`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "launchers"

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_the_kubernetes_example_has_the_fields_of_its_schemas() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    import yaml

    service, job = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    for resource in (service, job):
        for version in ("1.28", kubernetes_validate.latest_version()):
            kubernetes_validate.validate(resource, ".".join(version.split(".")[:2]), strict=True)
    pod, train = job["spec"]["template"]["spec"], job["spec"]["template"]["spec"]["containers"][0]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert f"--nnodes={job['spec']['completions']}" in train["command"]
    assert f"--rdzv-endpoint={job['metadata']['name']}-0.{pod['subdomain']}:29500" in train["command"]
    assert {mount["name"] for mount in train["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_the_skypilot_example_is_a_task() -> None:
    sky = pytest.importorskip("sky")
    task = sky.Task.from_yaml(str(EXAMPLES / "skypilot.yaml"))
    assert task.num_nodes == 2
    assert "--rdzv-endpoint" in task.run
    subprocess.run(["bash", "-n", "-c", task.run], check=True)


def test_ray_train_trains_and_resumes(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "corpus.txt").write_text("the quick brown fox jumps over the lazy dog; " * 400)
    for steps in (10, 20):
        command = [sys.executable, str(EXAMPLES / "ray_train.py"), str(tmp_path), str(steps)]
        subprocess.run(command, check=True, cwd=tmp_path, timeout=600)
    log = [json.loads(line) for line in (tmp_path / "checkpoints" / "ray" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log if "loss" in line] == list(range(1, 21))


def test_datatrove_writes_the_same_tokens_on_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    pytest.importorskip("datatrove")
    (tmp_path / "web").mkdir()
    for number in range(2):
        lines = [
            f'{{"text": "{number} {n} the quick brown fox jumps over the lazy dog <|endoftext|> b"}}' for n in range(50)
        ]
        (tmp_path / "web" / f"{number}.jsonl").write_text("\n".join(lines))
    for executor in ("local", "ray"):
        command = [
            sys.executable,
            str(EXAMPLES / "datatrove_prepare.py"),
            str(tmp_path / "web"),
            str(tmp_path / executor),
        ]
        subprocess.run([*command, "--executor", executor, "--memory", "1"], check=True, timeout=600)
    names = [path.name for path in (tmp_path / "local").glob("*.ds")]
    assert len(names) == 2
    for name in names:
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
