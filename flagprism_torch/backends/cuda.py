"""What Triton's NVIDIA backend can lower (triton/backends/nvidia). The clock is
`triton.language.extra.cuda.globaltimer`; CUDAOptions.warp_size is 32. Register limits: of 64, 80,
96, 128 and none those under which twins of elementwise, softmax, layernorm and log-softmax kernels
ran fastest on an H200; a dot product's tiles spill under any."""

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
    register_limits=(80, 128, None),
    moves={
        16: ("mov.b16 $0, $1;", "=h,h"),
        32: ("mov.b32 $0, $1;", "=f,f"),
        64: ("mov.b64 $0, $1;", "=d,d"),
    },
)
