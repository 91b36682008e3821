"""What Triton's NVIDIA backend can lower (triton/backends/nvidia). The clock is
`triton.language.extra.cuda.globaltimer`; CUDAOptions.warp_size is 32."""

from .profile import Profile

PROFILE = Profile(
    name="cuda",
    multi_operand_reduce=True,
    pointer_bitcast=True,
    pointer_to_int=True,
    atomic_results=True,
    clock=True,
    float64=True,
    warp_size=32,
)
