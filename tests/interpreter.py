"""A faster Triton interpreter: it replaces Triton's language once per launch and caches shapes.

Triton's own also looks for what to replace at each call of a function within a kernel, where all
is replaced already, makes a table of all types whenever it needs one, computes whether sums
overflow without ever reporting it, and checks a shape for each tensor that has it. That took three
quarters of the time of the CUDA room's tests. What kernels compute, and what is checked meanwhile,
does not change.
"""

from __future__ import annotations

import inspect
from functools import cache
from types import SimpleNamespace
from typing import Any


@cache
def quicken() -> None:
    """Patches the interpreter: once in a process, before any kernel runs there. Imports Triton."""
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

    @cache
    def interpreted(member: Any) -> Any:
        """The builtin without the check, at each call, that it is called within a kernel."""
        computes, semantic = inspect.unwrap(member), interpreter.interpreter_semantic

        def call(*args: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return computes(*args, **named)

        return call

    def replace(of: Any, builder: Any, scope: Any) -> None:
        for name in known[of]:
            if tl.core.is_builtin(member := getattr(of, name)):  # not replaced yet
                scope.set_attr(of, name, interpreted(member))

    def call(self: Any, *args: Any, **named: Any) -> Any:
        try:
            return self.rewrite()(*args, **named)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    # Nothing is raised where a sum overflows unless debug is on, which it never is.
    options = interpreter.InterpreterOptions(sanitize_overflow=False)
    interpreter.interpreter_builder.options = options
    interpreter._get_np_dtype = asked
    _know_shapes(tl.core, type(interpreter.interpreter_semantic))
    _know_operands(tl.core, type(interpreter.interpreter_semantic))
    interpreter._patch_builtin = replace
    interpreter._patch_lang = lambda _: patch(everywhere)
    interpreter.InterpretedFunction.__call__ = call


def _know_shapes(core: Any, semantic: Any) -> None:
    """Shares one tuple per shape, checked once, among all types and tensors that have it."""
    of_block, of_tensor = core.block_type.__init__, core.tensor.__init__
    fit = semantic.broadcast_impl_value

    @cache
    def block(*sizes: int) -> tuple[Any, Any, str]:
        made = object.__new__(core.block_type)
        of_block(made, core.int32, list(sizes))
        return made.shape, made.numel, str(made.shape)

    @cache
    def tensor(*sizes: int) -> tuple[Any, Any]:
        made = object.__new__(core.tensor)
        kind = core.block_type(core.int32, list(sizes)) if sizes else core.int32
        of_tensor(made, None, kind)
        return made.shape, made.numel

    def make_block(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = [getattr(size, "value", size) for size in shape]
        self.shape, self.numel, said = block(*sizes)
        self.element_ty, self.name = element_ty, f"<{said}, {element_ty}>"

    def make_tensor(self: Any, handle: Any, kind: Any) -> None:
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        self.shape, self.numel = tensor(*kind.shape.values) if kind.is_block() else tensor()

    def broadcast(self: Any, one: Any, other: Any) -> Any:
        return (one, other) if one.shape is other.shape else fit(self, one, other)

    core.block_type.__init__, core.tensor.__init__ = make_block, make_tensor
    semantic.broadcast_impl_value = broadcast


def _know_operands(core: Any, semantic: Any) -> None:
    """Takes two tensors of one type and shape as operands unchanged, and turns a number beside a
    tensor into the same tensor as the last time, which cannot be written to."""
    check = semantic.binary_op_type_checking_impl
    numbers = dict[Any, Any]()

    def operands(self: Any, one: Any, other: Any, *args: Any, **named: Any) -> Any:
        if type(one) is not core.tensor:
            return check(self, one, other, *args, **named)
        if type(other) is core.tensor:
            alike = one.dtype is other.dtype and one.shape is other.shape
            if alike and len(args) < 4 and not named and not one.dtype.is_ptr():  # no division
                return one, other
        if type(other) not in (int, float):
            return check(self, one, other, *args, **named)
        key = (one.dtype.name, id(one.shape), repr(other), args, *named.items())
        if key not in numbers:
            made = check(self, one, other, *args, **named)
            if made[0] is not one:
                return made
            made[1].handle.data.setflags(write=False)
            numbers[key] = made[1]
        return one, numbers[key]

    semantic.binary_op_type_checking_impl = operands
