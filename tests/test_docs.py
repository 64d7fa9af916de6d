"""What the documents say is there: commands with help, links with targets, code that runs."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

import ringcast
import ringcast.replicated
import ringcast.spark
import ringcast.testing
from ringcast.cli import main
from tools.site_pages import BESIDE, pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize("path", list(commands(main)), ids=" ".join)
def test_every_command_has_help_with_an_example(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*path, "--help"])
    assert result.exit_code == 0
    assert f"ringcast {path[0]}" in result.output.split("Example", 1)[1]


def test_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(main, ["explode"])
    assert result.exit_code == 2
    assert "No such command" in result.output


def test_no_placeholder_is_left() -> None:
    for page in PAGES:
        assert not re.findall(r"^[A-Z]+_[A-Z_]+$", page.read_text(), re.M), page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


def test_every_page_has_one_place_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    placed = re.findall(r"[\w/-]+\.md", navigation)
    decisions = {page for page in pages() if re.match(r"decisions/\d", page)}  # in a list of theirs
    assert sorted(placed) == sorted(set(pages()) - decisions)


def test_links_lead_somewhere_on_the_site_too() -> None:
    found = pages()
    for page, text in found.items():
        for target in re.findall(r"\]\((?![a-z]+:|#)([^)#]+)", text):
            on_site = os.path.normpath(os.path.join(os.path.dirname(page), target))
            assert on_site in found or on_site in BESIDE, (page, target)


def test_every_public_name_has_a_docstring_and_one_place_in_the_reference() -> None:
    reference = "".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    placed = re.findall(r"^::: ringcast\.(\S+)", reference, re.M)
    own = {"testing", "opentelemetry", "prometheus", "replicated"}
    own |= {f"spark.{name}" for name in ringcast.spark.__all__}
    assert sorted(placed) == sorted({*ringcast.__all__, *own})
    (members,) = re.findall(r"members: \[(.*cluster.*)\]", reference)
    assert sorted(members.split(", ")) == sorted(ringcast.testing.__all__)
    (structures,) = re.findall(r"members: \[(.*Space.*)\]", reference)
    assert sorted(structures.split(", ")) == sorted(ringcast.replicated.__all__)
    for module in (ringcast, ringcast.testing, ringcast.spark, ringcast.replicated):
        for name in module.__all__:
            public = getattr(module, name)
            text = inspect.getdoc(public) or ""
            inherited = {inspect.getdoc(base) for base in getattr(public, "__mro__", ())[1:]}
            assert text not in inherited, name
            assert not text.startswith(f"{name}("), name  # what a dataclass says by itself


def test_the_reference_of_commands_has_all_of_them() -> None:
    page = pages()["reference/commands.md"]
    headings = re.findall(r"^###? ringcast (.*)$", page, re.M)
    assert headings == [" ".join(path) for path in commands(main)]


def test_a_probe_may_take_longer_than_a_python_takes_to_start() -> None:
    probes = re.findall(r"readinessProbe: .*", pages()["howto/deploy.md"])
    assert probes
    assert all("timeoutSeconds: 5" in probe for probe in probes)


def test_the_readme_shows_the_two_commands_of_a_checkout() -> None:
    readme = (ROOT / "README.md").read_text()
    for command in ("$ make demo ", "$ make test "):
        assert f"\n{command}" in readme, command


def test_the_origin_of_the_designs_is_named_and_shipped() -> None:
    for name in ("README.md", "NOTICE"):
        text = (ROOT / name).read_text()
        assert "JGroups design notes by Bela Ban" in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "NOTICE" in project["license-files"]


def exchange_hellos(python: str | Path, program: str, folder: Path) -> None:
    """Start the first program of the README in two terminals, as its reader does."""
    (folder / "hello.py").write_text(program)
    terminals: list[subprocess.Popen[str]] = []

    def start() -> Callable[[], str]:
        command = [python, "-u", "hello.py"]
        terminals.append(subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True))
        screen = terminals[-1].stdout
        assert screen is not None
        return lambda: screen.readline().strip()

    try:
        first = start()
        alone = first()
        a = alone.removeprefix("View 1: ")
        assert alone == f"View 1: {a}"
        assert first() == f"{a} b'hello from {a}'"
        second = start()
        both = second()
        b = both.removeprefix(f"View 2: {a}, ")
        assert first() == both == f"View 2: {a}, {b}"
        assert first() == second() == f"{b} b'hello from {b}'"
    finally:
        for terminal in terminals:
            terminal.kill()
            terminal.communicate()


@pytest.mark.parametrize("transport", ["", ', transport="tcp"'], ids=["udp", "tcp"])
def test_the_first_program_of_the_readme_runs_in_two_terminals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert 'join("orders")' in program
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    program = program.replace('join("orders")', f'join("orders"{transport})')
    exchange_hellos(sys.executable, program, tmp_path)


@pytest.mark.proof
def test_the_readme_alone_leads_from_the_wheel_to_two_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an empty directory and an environment that has nothing else. Needs a package index."""
    readme = (ROOT / "README.md").read_text()
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", ROOT]
    subprocess.run(build, check=True, capture_output=True)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    made = {path.name for path in (tmp_path / "dist").iterdir()}
    wheel = f"ringcast-{version}-py3-none-any.whl"
    assert made == {wheel, f"ringcast-{version}.tar.gz"}
    assert f"pip install {wheel}" in readme
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    empty = tmp_path / "empty"
    empty.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "v"], cwd=empty, check=True)

    def run(*command: str | Path) -> str:
        command = (empty / "v" / "bin" / command[0], *command[1:])
        done = subprocess.run(command, cwd=empty, capture_output=True, text=True, check=True)
        return done.stdout

    run("pip", "install", tmp_path / "dist" / wheel)
    assert run("ringcast", "--version") == f"ringcast, version {version}\n"
    assert run("ringcast", "demo", "--quick").count("the same") == 3
    (program,) = re.findall(r"```python\n(.*?)```", readme, re.S)
    exchange_hellos(empty / "v" / "bin" / "python", program, empty)


def test_the_example_of_requests_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "howto" / "requests.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.S)
    (tmp_path / "shop.py").write_text(program)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it

    def shop(*what: str) -> subprocess.Popen[str]:
        command = [sys.executable, tmp_path / "shop.py", *what]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    server = shop()
    try:
        for what, answer in (
            ("apples", "apples cost 3"),
            ("plums", "prices refuses: KeyError: b'plums'"),
        ):
            assert answer in page
            asking = shop(what)
            assert asking.communicate(timeout=60)[0] == answer + "\n"
    finally:
        server.kill()
        server.communicate()


def test_the_example_of_structures_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "howto" / "replicated.md").read_text()
    program, *_ = re.findall(r"```python\n(.*?)```", page, re.S)
    (tmp_path / "shop.py").write_text(program)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    command = [sys.executable, tmp_path / "shop.py", "ann"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "4.2 3 ann\n")
    assert done.stdout in page


def test_the_example_of_the_blocking_api_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "howto" / "blocking.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.S)
    (tmp_path / "chat.py").write_text(program)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # private, as pytest makes it
    command = [sys.executable, tmp_path / "chat.py", "ann"]
    done = subprocess.run(command, input="hello\n", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ann hello\n")
    assert done.stdout in page
