"""Configurations as their makers publish them."""

import json
from pathlib import Path
from typing import Any

from polyfleet.loading.folder.config import read_config


def read(folder: Path, stated: dict[str, Any]) -> Any:
    """What a folder with this configuration says it is."""
    (folder / "config.json").write_text(json.dumps(stated))
    return read_config(folder)[1]
