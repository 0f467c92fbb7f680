"""Files written whole or not at all, and read without pickle: .npz, .safetensors and JSON."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from causal_attn.errors import InputError, OutputError

META = "__meta__"
"""The array of an .npz that holds the string metadata, as JSON."""


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path`, renamed onto it when the block ends well and removed when it does not."""
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise OutputError(f"{target}: cannot be written ({error.strerror})") from error
    temporary = Path(name)
    try:
        try:
            yield temporary
        except OSError as error:  # a full disk, a quota: whatever the writer met
            raise OutputError(f"{target}: cannot be written ({error.strerror or error})") from error
        temporary.chmod(0o644)
        try:
            temporary.replace(target)
        except OSError as error:
            raise OutputError(f"{target}: cannot be written ({error.strerror})") from error
    finally:
        temporary.unlink(missing_ok=True)


def _as_path(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"path: expected a file's name, got {path!r}")
    return Path(path)


def save_arrays(path: str | Path, arrays: Mapping[str, np.ndarray], meta: Mapping[str, str]) -> None:
    """Write arrays and string metadata to `path`, .npz or .safetensors by its suffix."""
    suffix = _as_path(path).suffix
    if suffix not in (".npz", ".safetensors"):
        raise InputError(f"path: expected a name ending in .npz or .safetensors, got {str(path)!r}")
    with whole_file(path) as temporary:
        if suffix == ".npz":
            with temporary.open("wb") as file:  # an open file: savez would add a second suffix to a name
                np.savez_compressed(file, **{META: np.array(json.dumps(dict(meta)))}, **dict(arrays))  # type: ignore[arg-type]
        else:
            from safetensors.numpy import save_file

            save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, temporary, dict(meta))


def load_arrays(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Arrays and metadata of a .npz or .safetensors file; never unpickles."""
    if not _as_path(path).is_file():
        raise InputError(f"path: no file at {str(path)!r}")
    from safetensors import SafetensorError, safe_open

    try:
        if Path(path).suffix == ".safetensors":
            with safe_open(path, framework="np") as file:
                arrays = {name: _numpy_tensor(file, name, path) for name in file.keys()}  # noqa: SIM118
                return arrays, dict(file.metadata() or {})
        if not zipfile.is_zipfile(path):  # np.load would also take a bare .npy
            raise ValueError("not a zip archive")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta = json.loads(str(arrays.pop(META))) if META in arrays else {}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error, SafetensorError) as error:
        raise InputError(f"path: {str(path)!r} cannot be read as arrays ({error})") from error
    return arrays, meta


def _numpy_tensor(file: Any, name: str, path: str | Path) -> np.ndarray:
    """A stored array; InputError for a type that NumPy has not, such as bfloat16."""
    try:
        return file.get_tensor(name)
    except (TypeError, AttributeError) as error:
        kind = file.get_slice(name).get_dtype()
        raise InputError(
            f"path: array {name!r} of {str(path)!r} is {kind}; expected a type that NumPy has, such as float32"
        ) from error


def save_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON; NaN and infinity are refused, since JSON has no word for them."""
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
