"""The folder of a kit: kit.json and the discriminator, until they are pushed."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from deltahub.client.errors import InvalidArgument
from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.discriminator_file import DISCRIMINATOR_FILE, discriminator_files

if TYPE_CHECKING:
    from deltahub.methods.transfer.kit import TransferKit

KIT_FILE: Final = "kit.json"
_MOST_JSON: Final = 4 << 20
# Bytes that give the size of kit.json in what is pushed.
_SIZE_BYTES: Final = 4


@dataclass(frozen=True)
class LocalKit:
    """A kit that was made here."""

    kit: "TransferKit"
    discriminator: bytes

    def body(self) -> bytes:
        """As it is pushed."""
        text = _text_of(self.kit)
        return len(text).to_bytes(_SIZE_BYTES, "little") + text + self.discriminator


def read_kit(folder: Path) -> LocalKit:
    """The kit in a folder. InvalidArgument if there is none, or its parts do not fit."""
    from deltahub.methods.transfer.kit import TransferKit

    try:
        size = (folder / KIT_FILE).stat().st_size
        if size > _MOST_JSON:
            raise InvalidArgument(f"{folder / KIT_FILE} has {size} bytes, more than a kit has")
        kit = TransferKit.model_validate_json((folder / KIT_FILE).read_bytes())
        discriminator = (folder / DISCRIMINATOR_FILE).read_bytes()
        discriminator_files(discriminator)
        kit.require_base(kit.base, discriminator)
    except OSError as exc:
        raise InvalidArgument(
            f"{folder} is no kit: {exc.strerror} ({exc.filename}). Make one by `deltahub adapter"
            " kit`"
        ) from exc
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or KIT_FILE
        raise InvalidArgument(f"{folder / KIT_FILE}: {where}: {first['msg']}") from exc
    except CannotTransfer as exc:
        raise InvalidArgument(f"{folder}: {exc}") from exc
    return LocalKit(kit, discriminator)


def require_free(folder: Path) -> None:
    """InvalidArgument unless there is no such folder, or it is empty or has a kit alone."""
    if not folder.exists():
        return
    names = {each.name for each in folder.iterdir()} if folder.is_dir() else {""}
    if names - {KIT_FILE, DISCRIMINATOR_FILE}:
        raise InvalidArgument(f"{folder} has other files than a kit's: name a new folder")


def write_kit(folder: Path, made: LocalKit) -> None:
    """Write a kit, in place of one before. A crash leaves the old one or the new one."""
    folder = folder.resolve()
    require_free(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = folder.with_name(f".{folder.name}.{os.getpid()}")
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    # It has private examples.
    new.mkdir(0o700)
    try:
        (new / KIT_FILE).write_bytes(_text_of(made.kit))
        (new / DISCRIMINATOR_FILE).write_bytes(made.discriminator)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    finally:
        for each in (new, old):
            shutil.rmtree(each, ignore_errors=True)


def _text_of(kit: "TransferKit") -> bytes:
    given: dict[str, Any] = kit.model_dump(mode="json")
    return (json.dumps(given, indent=1, ensure_ascii=False) + "\n").encode()
