"""What is sent. One file each; every member obeys the laws of `tests/contract/`."""

from gradwire.compressors.cast import BFloat16, Float16, Identity
from gradwire.compressors.topk import TopK

MEMBERS = (Identity, Float16, BFloat16, TopK)

__all__ = ["MEMBERS", "BFloat16", "Float16", "Identity", "TopK"]
