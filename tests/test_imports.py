"""The shape of the code: which way imports point, and what each side of the server may know."""

from __future__ import annotations

import ast
import graphlib
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cache", "model", "server")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if path.name != "__init__.py"
}
MARKERS = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py"))
WITHOUT_TORCH = {
    "cache.blocks",
    "cache.prefix",
    "cache.manager",
    "server.app",
    "server.transport.connection",
    "server.handlers.openapi",
    "server.schemas",
    "server.input_processor",
    "server.inputs.prompt_encoder",
    "server.streaming",
    "server.transport.wire",
    "server.answers.writer",
    "server.request",
    "server.batch",
    "server.planning.pace",
    "server.scheduler",
    "server.planning.step_plan",
    "server.errors",
    "server.config",
}
# What stands beside app are parts of it in files of their own.
WITH_FASTAPI = {
    f"server.{name}"
    for name in (
        *("app", "deployment", "transport.connection", "transport.event_stream"),
        *(f"handlers.{name}" for name in ("access", "api", "dispatcher", "experiments")),
        *(f"handlers.{name}" for name in ("openapi", "other_forms", "page", "views")),
    )
}
PUBLIC_TO_TOOLS = {
    f"server.{name}"
    for name in (
        "engine",
        "loaded_engine",
        "request",
        "config",
        "errors",
        "commands.options",
        "observability.comparison",
    )
}
# Which package may use which, within model and within server; modules on the top level may use
# all and be used by all.
ARROWS: dict[str, set[str]] = {
    "formats": set(),
    "text": set(),
    "transport": set(),
    "planning": set(),
    "sampling": set(),
    "structured_output": set(),
    "answers": {"structured_output", "transport"},
    "observability": {"planning", "transport"},
    "inputs": {"observability", "structured_output"},
    "dialects": {"answers", "inputs", "structured_output", "transport"},
    "handlers": {"answers", "dialects", "inputs", "observability", "transport"},
    "commands": {"handlers", "planning"},
    "tools": {"commands", "observability"},
}
ENGINE_SIDE = {
    f"server.{name}"
    for name in (
        *("batch", "detokenizer", "engine", "grammar", "loaded_engine", "output_processor"),
        *("request", "runner", "sampler", "scheduler", "text_logits"),
    )
}
HTTP_SIDE = {"answers", "commands", "dialects", "handlers", "inputs", "tools", "transport"}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def runtime_nodes(node: ast.AST) -> list[ast.AST]:
    """All nodes that exist when the program runs, functions included."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(node):
        if not is_type_checking(child):
            found += [child, *runtime_nodes(child)]
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """What a module imports at run time, anywhere in it, by full dotted name."""
    found: set[str] = set()
    for node in runtime_nodes(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys() or {str(node.module)}
    return frozenset(found)


def packages_of(names: frozenset[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def inner_packages_of(names: frozenset[str]) -> set[str]:
    """The packages within model and server that modules belong to; on the top level to none."""
    parts = [name.split(".") for name in names & MODULES.keys()]
    return {part[1] for part in parts if len(part) > 2}


def test_there_is_something_to_check() -> None:
    """The rules below name modules that are really there and really import what they forbid."""
    assert {"cache.manager", "server.scheduler", "server.request"} <= MODULES.keys()
    assert "torch" in imports("cache.pool")
    assert "cache.blocks" in imports("cache.manager")


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module: str) -> None:
    """Cache imports neither model nor server, and model does not import server."""
    package = module.split(".", maxsplit=1)[0]
    above = PACKAGES[PACKAGES.index(package) + 1 :]
    assert not packages_of(imports(module)) & set(above)


def test_imports_have_no_cycle() -> None:
    """No module reaches itself through what it imports."""
    graph = {module: imports(module) & MODULES.keys() for module in MODULES}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


def test_every_inner_package_has_its_arrows() -> None:
    """The arrows name the packages that are there, all of them, and have no cycle."""
    assert inner_packages_of(frozenset(MODULES)) == ARROWS.keys()
    graphlib.TopologicalSorter(ARROWS).prepare()


@pytest.mark.parametrize("package", ARROWS)
def test_inner_packages_use_those_below_them(package: str) -> None:
    """A package uses its own modules, those on the top level, and the packages named for it."""
    own = {name for name in MODULES if inner_packages_of(frozenset({name})) == {package}}
    used = inner_packages_of(frozenset().union(*map(imports, own))) - {package}
    assert used == ARROWS[package]


@pytest.mark.parametrize("module", sorted(ENGINE_SIDE))
def test_the_engine_knows_nothing_of_http(module: str) -> None:
    """What runs in the engine thread uses no package of the HTTP side, nor a command."""
    assert not inner_packages_of(imports(module)) & HTTP_SIDE


@pytest.mark.parametrize("marker", MARKERS, ids=lambda path: path.parent.name)
def test_a_package_says_what_it_is_and_imports_nothing(marker: Path) -> None:
    """Each `__init__.py` holds what its package is for, and no names from its modules."""
    (docstring,) = ast.parse(marker.read_text(encoding="utf-8")).body
    assert isinstance(docstring, ast.Expr)


def test_every_package_is_installed() -> None:
    """The list in pyproject.toml names each folder with modules."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {".".join(marker.parent.relative_to(ROOT).parts) for marker in MARKERS}
    assert set(settings["tool"]["setuptools"]["packages"]) == folders


@pytest.mark.parametrize("module", sorted(WITHOUT_TORCH))
def test_bookkeeping_and_http_never_import_torch(module: str) -> None:
    """The books of the cache, the scheduler and the HTTP side deal in plain data, not tensors."""
    assert "torch" not in packages_of(imports(module))


@pytest.mark.parametrize("module", MODULES)
def test_only_the_http_edge_knows_fastapi(module: str) -> None:
    """FastAPI and Starlette appear in the application, the streams and the deployment alone."""
    web = packages_of(imports(module)) & {"fastapi", "starlette"}
    assert module in WITH_FASTAPI or not web


def test_tools_use_what_a_user_could_use() -> None:
    """Tools talk HTTP or use the public engine and its configuration, never the internals."""
    for module in MODULES:
        if module.startswith("server.tools."):
            ours = {
                name for name in imports(module) if packages_of(frozenset({name})) & {*PACKAGES}
            }
            internals = ours - PUBLIC_TO_TOOLS
            assert all(name.startswith("server.tools") for name in internals), module


def test_no_package_marker_under_tests() -> None:
    """A marker such as tests/model/__init__.py would shadow the package of that name."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []


@pytest.mark.parametrize("module", MODULES)
def test_no_module_shadows_a_library(module: str) -> None:
    """No module or package carries the name of a standard library module or of a dependency."""
    dependencies = {"safetensors", "tokenizers", "gguf", "torch", "jinja2", "openai", "numpy"}
    assert not {*module.split(".")} & (sys.stdlib_module_names | dependencies)
