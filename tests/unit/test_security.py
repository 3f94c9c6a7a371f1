"""What SECURITY.md says of the sources: nothing that is received or loaded is unpickled, no text
is run, and no port is opened to others."""

from __future__ import annotations

import ast
from pathlib import Path

from source import FILES

UNPICKLERS = {"pickle", "cPickle", "dill", "shelve", "marshal", "joblib", "cloudpickle"}
OBJECTS = {
    "all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list",
    "send_object_list", "recv_object_list",
}  # fmt: skip
SERVERS = {"http.server", "socketserver", "xmlrpc.server", "wsgiref"}


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    """The names of functions that are called, as the last part of their dotted name."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            own = node.func
            name = own.attr if isinstance(own, ast.Attribute) else getattr(own, "id", "")
            found.append((name, node))
    return found


def test_nothing_is_unpickled_or_run_and_nobody_listens() -> None:
    loads = 0
    for module, path in FILES.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        names |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert not names & UNPICKLERS, module
        assert not names & SERVERS, module
        for name, call in calls(tree):
            assert name not in OBJECTS, module
            is_plain = isinstance(call.func, ast.Name)
            assert not (is_plain and name in {"eval", "exec", "compile"}), module
            if ast.unparse(call.func) == "torch.load":
                given = {k.arg: ast.unparse(k.value) for k in call.keywords}
                assert given.get("weights_only") == "True", module
                loads += 1
    assert loads >= 2


def test_the_page_names_the_one_call_that_lets_torch_unpickle() -> None:
    readers = {
        module
        for module, path in FILES.items()
        for name, _ in calls(ast.parse(path.read_text(encoding="utf-8")))
        if name in {"FileSystemReader", "read_metadata"}
    }
    assert readers == {"gradwire.training.checkpoint"}  # `Handle.load_checkpoint` alone calls it
    page = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    told = [line for line in page.splitlines() if "lets torch unpickle" in line]
    assert len(told) == 1
    assert "`handle.load_checkpoint(" in told[0]
