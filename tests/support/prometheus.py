"""A real Prometheus on loopback, started as deploy/prometheus.yaml says, with other addresses and shorter intervals."""

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from tests.support.ports import free_addresses
from tests.support.serve_process import wait_for

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "deploy" / "prometheus.yaml"
SCRAPE_SECONDS = 1
Series = list[dict[str, Any]]


def configuration(gateway: str, scheduler: str) -> dict[str, Any]:
    """The repository's own configuration for these addresses."""
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    seconds = f"{SCRAPE_SECONDS}s"
    config["global"] = {"scrape_interval": seconds, "evaluation_interval": seconds}
    config["rule_files"] = [str(CONFIG.parent / path) for path in config["rule_files"]]
    jobs = {job["job_name"].removeprefix("polyfleet-"): job for job in config["scrape_configs"]}
    jobs["gateway"]["static_configs"] = [{"targets": [gateway]}]
    jobs["scheduler"]["static_configs"] = [{"targets": [scheduler]}]
    jobs["workers"]["http_sd_configs"] = [{"url": f"http://{scheduler}/targets", "refresh_interval": seconds}]
    return config


class PrometheusProcess:
    """`with PrometheusProcess(folder, config) as prometheus:` it answers queries inside."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        (self.address,) = free_addresses(1)
        self._folder = folder
        (folder / "prometheus.yaml").write_text(json.dumps(config))

    def __enter__(self) -> "PrometheusProcess":
        command = ["prometheus", f"--config.file={self._folder / 'prometheus.yaml'}", "--log.level=warn"]
        command += [f"--storage.tsdb.path={self._folder / 'data'}", f"--web.listen-address={self.address}"]
        self._log = (self._folder / "prometheus.log").open("w+")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT, cwd=self._folder)
        wait_for(self._ready, "Prometheus to be ready")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def _ready(self) -> bool:
        assert self._process.poll() is None, Path(self._log.name).read_text()
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def get(self, path: str, **parameters: Any) -> Any:
        """The data of an API call; fails the test with Prometheus' own words when it is refused."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refusal:
            raise AssertionError(f"{path} {parameters}: {refusal.read().decode()}") from None

    def query(self, promql: str) -> Series:
        """The series of an instant query now, or the scalar as one without labels."""
        data = self.get("query", query=promql)
        return [{"metric": {}, "value": data["result"]}] if data["resultType"] == "scalar" else list(data["result"])

    def query_range(self, promql: str, start: float, end: float, step: float) -> Series:
        """The series of a range query."""
        return list(self.get("query_range", query=promql, start=start, end=end, step=step)["result"])

    def values(self, promql: str) -> list[float]:
        """The values of an instant query."""
        return [float(series["value"][1]) for series in self.query(promql)]
