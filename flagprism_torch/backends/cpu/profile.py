"""What this backend can lower."""

from ..profile import Profile

PROFILE = Profile(
    name="cpu",
    multi_operand_reduce=True,
    pointer_bitcast=True,
    pointer_to_int=True,
    atomic_results=True,
    clock=True,
    float64=True,
    warp_size=None,
)
