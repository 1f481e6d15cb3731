"""A whole run of the engine's benchmark with a peer, on a tiny model."""

import json
from pathlib import Path

import pytest
from bench import engine as bench
from bench.contenders.process import sweep
from tests.support.tiny_models import TinyShape, write_folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shape = TinyShape(vocabulary=20_000, hidden=32, heads=2, kv_heads=1, intermediate=32, context=1024)
    return write_folder(tmp_path / "model", shape)


@pytest.mark.slow
def test_a_whole_run_with_a_peer(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "sweep", lambda *arguments: sweep(*arguments)[:1])  # each setting is a process to start
    file = tmp_path / "rows.json"
    arguments = ["--model", str(model), "--threads", "1", "--repeats", "1", "--workloads", "decode_16,prefill_512"]
    assert bench.main([*arguments, "--peers", "transformers", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    assert [(row["name"], row["peer"], row["unit"]) for row in rows] == [
        ("decode_16", "transformers", "tokens/s"),
        ("prefill_512", "transformers", "tokens/s"),
    ]
    for row in rows:
        assert row["value"] > 0
        assert row["ratio"] == pytest.approx(row["value"] / row["peer_value"])
        assert set(row) == {"name", "value", "unit", "peer", "peer_value", "ratio", "command", "commit"}
    shown = capsys.readouterr()
    assert "decode_16" in shown.out
    assert "dtype=float32 attention=sdpa device=cpu threads=1: decode_16" in shown.err
    assert "decode_16 at its best: dtype=" in shown.err
