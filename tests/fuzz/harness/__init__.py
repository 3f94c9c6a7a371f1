"""A fuzzer of every function that reaches the extension: see docs/design/fuzzing.md."""
