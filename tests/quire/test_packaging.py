"""What stands beside the packages: the image, the services, the commented configuration."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from quire.cli import quire
from tests.quire.commands import ROOT

SERVICES = sorted((ROOT / "conf" / "systemd").glob("*.service"))


def test_image_holds_every_package() -> None:
    """A missing one would fail the build, which nothing else here runs."""
    declared = configparser.ConfigParser(interpolation=None)
    declared.read(ROOT / "setup.cfg")
    packages = {name.partition(".")[0] for name in declared["options"]["packages"].split()}
    modules = {f"{name}.py" for name in declared["options"]["py_modules"].split()}
    copied = set(re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    files = {name for line in copied for name in line.split()}
    assert packages | modules <= files
    assert not [name for name in files if not (ROOT / name).exists()]


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_service_runs_a_command_that_exists(path: Path) -> None:
    (line,) = re.findall(r"^ExecStart=(.+)$", path.read_text(), re.MULTILINE)
    program, command, option, file = shlex.split(line)
    assert (Path(program).name, option, Path(file).suffix) == ("quire", "--conf", ".conf")
    assert "--conf" in CliRunner().invoke(quire, [command, "--help"]).output


def test_compose_runs_commands_that_exist() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    commands = re.findall(r"^ +command: (.+)$", text, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        names = shlex.split(command.partition(" --")[0])
        assert CliRunner().invoke(quire, [*names, "--help"]).exit_code == 0
    settings = set(re.findall(r"^ +BK_(\w+):", text, re.MULTILINE))
    known = (ROOT / "docs" / "configuration.md").read_text()
    assert not [key for key in settings if f"`{key}`" not in known]
    # Every volume that a service uses is declared, and the other way round.
    used = re.findall(r"volumes: \[([\w-]+):", text)
    declared = re.findall(r"([\w-]+): \{\}", text.rpartition("volumes:")[2])
    assert sorted(used) == sorted(declared)
