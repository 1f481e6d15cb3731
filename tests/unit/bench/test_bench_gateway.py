"""bench.gateway: a bare relay carries whole streams, and the rows say what they are called."""

import asyncio

import pytest
from bench.gateway.__main__ import Turn, parse, rows
from bench.gateway.far_end import TOKENS, Steps, bare_server
from bench.gateway.load import Came, GrpcStreams, Load, drive
from bench.gateway.relays import Relay


async def test_streams_come_whole_through_a_bare_relay() -> None:
    origin, port = bare_server(Steps(0.001).generate)
    await origin.start()
    relay, relay_port = bare_server(Relay(f"127.0.0.1:{port}").generate)
    await relay.start()
    streams = GrpcStreams((f"127.0.0.1:{relay_port}",), 2)
    load = await drive(streams.one, clients=3, seconds=0.0, gap=0.001, phases=0.02)
    await streams.close()
    await relay.stop(0)
    await origin.stop(0)
    assert (load.streams, load.messages) == (3, 3 * TOKENS)


def test_rows_say_streams_a_cpu_second_and_what_is_added_to_a_bare_server() -> None:
    turns = {"gateway": [Turn(Load(300, 9600, 0.012), 1.0)], "server": [Turn(Load(600, 19200, 0.010), 1.0)]}
    turns["apart"] = [Turn(Load(400, 12800, 0.012), 1.0, 0.25), Turn(Load(400, 12800, 0.012), 1.0, 0.35)]
    firsts = {(begin, name): some for begin in ("together", "spread") for name, some in turns.items()}
    firsts["spread", "gateway"] = [Turn(Load(300, 9600, 0.011), 1.0)]
    found = {row.name: row for row in rows(turns, firsts)}
    assert found["gateway_streams_per_cpu_second_gateway"].value == 300
    assert (found["gateway_beside_server"].ratio, found["gateway_beside_apart"].ratio) == (0.5, 0.75)
    assert found["gateway_cpu_per_token_server"].value == pytest.approx(1e6 / 600 / TOKENS)
    assert found["gateway_busiest_process_apart"].value == pytest.approx(0.3)
    assert "gateway_busiest_process_gateway" not in found  # it has one process
    assert found["gateway_messages_per_stream_gateway"].value == 32
    assert found["gateway_added_first_token_together_gateway"].value == pytest.approx(2)
    assert found["gateway_added_first_token_spread_gateway"].value == pytest.approx(1)


def test_rows_say_how_many_times_one_process_several_carry_on_cores_of_their_own() -> None:
    """Each costs a quarter more than alone, and the busiest has 0.3 of the work."""
    load = Load(400, 12800, 0.012)
    found = {row.name: row for row in rows({"gateway": [Turn(load, 1.25, 0.3)], "apart": [Turn(load, 1.0, 0.25)]}, {})}
    assert found["gateway_times_one_process"].value == pytest.approx(0.8 / 0.3)


async def test_clients_begin_together_or_spread_over_a_stream() -> None:
    begins = list[float]()
    loop = asyncio.get_running_loop()

    async def stream() -> Came:
        begins.append(loop.time())
        await asyncio.sleep(0)
        return Came(0.001, TOKENS)

    for phases, least in ((0.0, 0.0), (0.4, 0.2)):
        begins.clear()
        began = loop.time()
        assert (await drive(stream, clients=20, seconds=0.0, gap=0.001, phases=phases)).streams == 20
        assert max(begins) - began >= least


@pytest.mark.parametrize(
    "wrong", [["--only", "gateway,envoy"], ["--rounds", "0"], ["--gap", "0"], ["--per-connection", "0"]]
)
def test_what_cannot_be_run_is_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(wrong)
