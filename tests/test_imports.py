"""The shape of the code: which way imports point, and what each side of the server may know."""

from __future__ import annotations

import ast
import graphlib
import sys
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
        *("access", "api", "app", "connection", "deployment", "dispatcher", "experiments"),
        *("openapi", "other_forms", "page", "streaming", "views"),
    )
}
PUBLIC_TO_TOOLS = {
    f"server.{name}"
    for name in (
        "engine",
        "loaded_engine",
        "request",
        "config",
        "cli_options",
        "errors",
        "comparison",
    )
}


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


@pytest.mark.parametrize("module", sorted(WITHOUT_TORCH & MODULES.keys()))
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
    """No module carries the name of a standard library module or of a dependency it could hide."""
    name = module.rsplit(".", maxsplit=1)[-1]
    dependencies = {"safetensors", "tokenizers", "gguf", "torch", "jinja2", "openai", "numpy"}
    assert name not in sys.stdlib_module_names | dependencies
