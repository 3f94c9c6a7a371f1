"""Triton's interpreter, which replaces Triton's language once for each launch.

As it is, it looks for what to replace at each call of a function within a kernel, too, where all
is replaced already, and makes a table of all types whenever it asks for one: 40 % of the time of
the CUDA room's tests. What kernels compute, and what is checked meanwhile, is as it was.
"""

from __future__ import annotations

import inspect
from functools import cache
from types import SimpleNamespace
from typing import Any


@cache
def quicken() -> None:
    """Once in a process, before any kernel runs there; Triton is imported."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch, ask = interpreter._patch_lang, interpreter._get_np_dtype
    everywhere = SimpleNamespace(__globals__={"a": tl, "b": tl.core})
    types = dict[str, Any]()
    known = {
        of: [name for name, member in inspect.getmembers(of) if tl.core.is_builtin(member)]
        for of in (tl, tl.core, tl.tensor, tl.math, tl.core.tensor_descriptor_base)
    }

    def asked(of: Any) -> Any:
        of = of.element_ty if isinstance(of, tl.block_type) else of
        name = "pointer" if isinstance(of, tl.pointer_type) else of.name
        return types.get(name) or types.setdefault(name, ask(of))

    def replace(of: Any, builder: Any, scope: Any) -> None:
        for name in known[of]:
            if tl.core.is_builtin(member := getattr(of, name)):  # not replaced yet
                interpreter._patch_attr(of, name, member, builder, scope)

    def call(self: Any, *args: Any, **named: Any) -> Any:
        try:
            return self.rewrite()(*args, **named)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    interpreter._get_np_dtype = asked
    interpreter._patch_builtin = replace
    interpreter._patch_lang = lambda _: patch(everywhere)
    interpreter.InterpretedFunction.__call__ = call
