"""Groups whose commands are loaded when they are called: a bookie needs no tables, and back."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """`places` maps the name of a command to `module:attribute`."""

    def __init__(self, *arguments: Any, places: Mapping[str, str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._places.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        try:
            found = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            raise click.ClickException(
                f"`{cmd_name}` needs {error.name}, which is not installed: "
                "run pip install 'quire[all]'"
            ) from error
        assert isinstance(found, click.Command)
        return found
