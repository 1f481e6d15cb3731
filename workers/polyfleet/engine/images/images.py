"""The images of sequences: their rows are computed once, a crop between two steps."""

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from polyfleet.engine.batching.parts import first_line
from polyfleet.engine.executor import DeviceTimeout
from polyfleet.engine.images.vision import VisionTower
from polyfleet.engine.step.image_rows import Rows, SequenceImages
from polyfleet.engine.step.sequence import Sequence
from polyfleet.wire.images import DIGEST_BYTES
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import SequenceRequest

KEPT_BYTES = 64 * 1024 * 1024  # of rows of images that may come again


class ImageEncoder:
    """Computes the rows of images, and keeps those of the last ones, by digest."""

    def __init__(self, tower: VisionTower) -> None:
        self._tower = tower
        self._kept: OrderedDict[bytes, Rows] = OrderedDict()
        self._kept_bytes = 0

    def images_of(self, request: SequenceRequest) -> SequenceImages:
        """Those of a sequence, none of them computed; raises FieldError where they don't fit its prompt."""
        crops = [self._tower.crops(each.pixels) for each in request.images]
        if any(len(each.digest) != DIGEST_BYTES for each in request.images):
            raise FieldError("images", f"must have digests of {DIGEST_BYTES} bytes")
        config = self._tower.config
        positions = np.flatnonzero(np.array(request.prompt_ids, dtype=np.int64) == config.token_id).astype(np.int32)
        rows = config.rows * sum(map(len, crops))
        if len(positions) != rows:
            raise FieldError("images", f"have {rows} rows, but the prompt has {len(positions)} tokens for them")
        return SequenceImages(positions, crops, [each.digest for each in request.images], config.output_size)

    def advance_first(self, waiting: Iterable[Sequence]) -> tuple[Sequence, str] | None:
        """Compute one crop of the first sequence that waits for its images; returns that one and why, if they fail.

        Raises DeviceTimeout where the device hangs.
        """
        for sequence in waiting:
            if sequence.images is not None and not sequence.images.ready:
                try:
                    self._advance(sequence.images)
                except DeviceTimeout:
                    raise
                except Exception as error:
                    return sequence, f"the engine could not see an image: {first_line(error)}"
                return None
        return None

    def _advance(self, images: SequenceImages) -> None:
        """Compute one crop, or take what is known of one image. Raises what executors raise."""
        digest, crops, done = images.next_image
        rows = self._kept.get(digest) if not done else None
        if rows is not None and len(rows) == len(crops) * self._tower.config.rows:
            self._kept.move_to_end(digest)
            images.add(rows)
            return
        images.add(self._tower.encode(crops[done]))
        if done + 1 == len(crops):
            self._keep(digest, images.last(len(crops) * self._tower.config.rows).copy())

    def close(self) -> None:
        """Free the device's memory."""
        self._kept.clear()
        self._tower.close()

    def _keep(self, digest: bytes, rows: Rows) -> None:
        old = self._kept.pop(digest, None)
        self._kept[digest] = rows
        self._kept_bytes += rows.nbytes - (0 if old is None else old.nbytes)
        while self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
