"""Convert a GGUF file, once, into a model folder: config, float weights, tokenizer, provenance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from betoken.models.files import Progress, disk_errors, need_room, staged_folder
from betoken.models.save import write_json, write_safetensors, write_settings

FORMAT = 1
"""Goes up when conversion changes what it writes; folders of another number are converted anew."""
_SETTINGS_ROOM = 32 << 20


def convert_gguf(path: Path, folder: Path, source: Mapping[str, Any], progress: Progress) -> None:
    """`folder` appears whole or not at all. `source`: what `source.json` will say of the origin.

    Quantised weights become float16 and others keep their dtype (see gguf.py). Raises InputError for a file that
    cannot be converted and for a full disk.
    """
    from betoken.models.gguf import GgufModel  # slow to import and needed once in a model's life
    from betoken.models.gguf_tokenizer import tokenizer_from_gguf

    model = GgufModel(path)
    tokenizer = tokenizer_from_gguf(model.metadata)
    shapes, dtypes = model.config.tensor_shapes, model.dtypes
    total = sum(math.prod(shape) * dtypes[name].itemsize for name, shape in shapes.items())
    with disk_errors(folder.parent):
        need_room(folder.parent, total + _SETTINGS_ROOM)
        with staged_folder(folder) as stage, progress.task(f"converting {path.name}", total) as advance:
            write_settings(stage, model.config, tokenizer)
            write_safetensors(stage / "model.safetensors", shapes, dtypes, model.tensor, advance)
            write_json(stage / "source.json", {"format": FORMAT, **source})
