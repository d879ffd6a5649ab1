"""Builds the Python package as scikit-build-core does, after the files that browsers load."""

from typing import Any

import build_pages
from scikit_build_core import build as native

Settings = dict[str, Any] | None


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    return [*native.get_requires_for_build_sdist(config_settings), *build_pages.requirements()]


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return [*native.get_requires_for_build_wheel(config_settings), *build_pages.requirements()]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return [*native.get_requires_for_build_editable(config_settings), *build_pages.requirements()]


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    build_pages.build_if_needed()
    return native.build_sdist(sdist_directory, config_settings)


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    build_pages.build_if_needed()
    return native.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    build_pages.build_if_needed()
    return native.build_editable(wheel_directory, config_settings, metadata_directory)
