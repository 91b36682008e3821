"""What Triton's AMD backend can lower (triton/backends/amd). The clock is
`triton.language.extra.hip.memrealtime`; HIPOptions.warp_size is 64 on CDNA and 32 on RDNA."""

from .profile import Profile

PROFILE = Profile(
    name="hip",
    multi_operand_reduce=True,
    pointer_bitcast=True,
    pointer_to_int=True,
    atomic_results=True,
    clock=True,
    float64=True,
    warp_size=64,
    moves={32: ("v_mov_b32 $0, $1", "=v,v")},
)
