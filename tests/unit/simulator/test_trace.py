"""Traces of public formats, with broken lines."""

from pathlib import Path

import pytest

from polyfleet.simulator.trace import BEGINNINGS, Trace, draw_trace, read_trace


def read(tmp_path: Path, text: str) -> Trace:
    (tmp_path / "trace").write_text(text)
    return read_trace(tmp_path / "trace")


def test_mooncake_lines_have_grains_of_their_blocks(tmp_path: Path) -> None:
    text = '{"timestamp": 27482, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 48]}\n'
    text += '\n{"timestamp": 30535, "input_length": 600, "output_length": 26, "hash_ids": [46, 57]}\n'
    one, other = read(tmp_path, text).arrivals
    assert (one.seconds, one.prompt_tokens, one.output_tokens) == (0.0, 1100, 52)
    assert other.seconds == pytest.approx(3.053)
    assert (len(one.grains), len(other.grains)) == (17, 9)
    assert one.grains[:8] == other.grains[:8]
    assert not set(one.grains[8:]) & set(other.grains[8:])


def test_azure_lines_have_dates(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    text += "2023-11-16 18:15:50.9951690,396,109\n"
    one, other = read(tmp_path, text).arrivals
    assert (one.prompt_tokens, one.output_tokens, one.grains) == (374, 44, ())
    assert other.seconds == pytest.approx(4.314579, abs=1e-5)
    zones = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-03-31 00:59:59.5,1,1\n2024-03-31T03:00:00.25+02:00,1,1\n"
    assert [each.seconds for each in read(tmp_path, zones).arrivals] == [0.0, 0.75]
    newer = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2024-05-10 00:00:00.009930+00:00,2162,5\r\n"
    assert read(tmp_path, newer).arrivals[0].prompt_tokens == 2162


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "no JSON object"),
        ("7", "no JSON object, nor a row below a line with names"),
        ("[" * 5000, "no JSON object, nor a row below a line with names"),
        ('{"a": ' * 5000, "no JSON object"),
        ('{"timestamp": true, "input_length": 5, "output_length": 5}', "timestamp is neither number nor date"),
        ('{"timestamp": 5, "input_length": true, "output_length": 5}', "input_length is no number"),
        ('{"timestamp": 5, "input_length": 1%s, "output_length": 5}' % ("0" * 400), "input_length is out of range"),
        ('{"timestamp": 5, "input_length": 5, "output_length": 5, "hash_ids": 7}', "hash_ids are no numbers"),
        ('{"timestamp": 5, "input_length": 5, "output_length": 5, "hash_ids": {"1": 2}}', "hash_ids are no numbers"),
        ('{"input_length": 5, "output_length": 5}', "no timestamp"),
        ('{"timestamp": 5, "input_length": 0, "output_length": 5}', "input_length is out of range"),
        ('{"timestamp": 5, "input_length": 1.5, "output_length": 5}', "input_length is out of range"),
        ('{"timestamp": 5, "input_length": NaN, "output_length": 5}', "input_length is out of range"),
        ('{"timestamp": 5, "input_length": 5, "output_length": -1}', "output_length is out of range"),
        ('{"timestamp": 5, "input_length": "many", "output_length": 1}', "input_length is no number"),
        ('{"timestamp": 5, "input_length": [1], "output_length": 1}', "input_length is no number"),
        ('{"timestamp": "noon", "input_length": 5, "output_length": 5}', "timestamp is neither number nor date"),
        ('{"timestamp": 1e300, "input_length": 5, "output_length": 5}', "a time out of range"),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 5}', "a time out of range"),
        ('{"timestamp": 5, "input_length": 5, "output_length": 5, "hash_ids": ["a"]}', "hash_ids are no numbers"),
    ],
)
def test_a_broken_line_is_counted_and_left_out(tmp_path: Path, line: str, reason: str) -> None:
    whole = '{"timestamp": 5, "input_length": 5, "output_length": 5}'
    for lines in ((whole, line, whole), (line, whole, whole)):
        trace = read(tmp_path, "\n".join(lines))
        assert (len(trace.arrivals), dict(trace.skipped)) == (2, {reason: 1})


def test_broken_rows_of_a_table_too_and_what_is_no_trace_is_empty(tmp_path: Path) -> None:
    table = "TIMESTAMP,ContextTokens,GeneratedTokens\n1.5,10,2\nx,10,2\n2.5\n,,,,,\n3.5,a,2\n0.5,7,1\n"
    trace = read(tmp_path, table)
    assert [each.seconds for each in trace.arrivals] == [0.0, 1.0]  # in order of time
    assert trace.skipped.total() == 4
    quoted = 'TIMESTAMP,ContextTokens,GeneratedTokens\n1,10,2\n2,"10,2\n3,%s,2\n4,10,\0002\n5,10,2\n' % ("1" * 200_000)
    trace = read(tmp_path, "\ufeff" + quoted)
    assert [each.seconds for each in trace.arrivals] == [0.0, 3.0, 4.0]
    assert trace.skipped == {"input_length is no number": 1, "no row of a table": 1}
    for nothing in ("", "\n\n", "hello\nworld\n"):
        assert read(tmp_path, nothing).arrivals == []


def test_drawn_traces_are_the_same_for_a_seed_and_share_what_they_should() -> None:
    shared, apart = draw_trace(200, 5, shared=True), draw_trace(200, 5, shared=False)
    assert shared.arrivals == draw_trace(200, 5, shared=True).arrivals
    assert len({each.grains[0] for each in shared.arrivals if len(each.grains) > 1}) <= BEGINNINGS
    assert len({grain for each in apart.arrivals for grain in each.grains}) == sum(
        len(e.grains) for e in apart.arrivals
    )
    assert shared.at_rate(4.0).seconds == pytest.approx(50.0)
