"""The C++ extension; everything else about the package is in pyproject.toml.

One library on the LibTorch stable ABI serves every torch from 2.10 on, and (except on free-threaded
Python, which has no limited API) every Python from 3.10 on. `TORCH_TARGET_VERSION` turns an include
of an unstable torch header into a compile error.
"""

import sysconfig

from setuptools import setup

try:
    from torch.utils.cpp_extension import BuildExtension, CppExtension
except ImportError as error:
    raise SystemExit(
        f"the build of flagprism_torch needs the installed torch ({error}); "
        "install torch first, then: pip install -e . --no-build-isolation"
    ) from error

LIMITED_API = not sysconfig.get_config_var("Py_GIL_DISABLED")
CSRC = "flagprism_torch/csrc"

setup(
    ext_modules=[
        CppExtension(
            "flagprism_torch._C",
            [f"{CSRC}/library.cpp", f"{CSRC}/record_buffer.cpp", f"{CSRC}/aggregate.cpp"],
            depends=[f"{CSRC}/record.h"],
            py_limited_api=LIMITED_API,
            extra_compile_args={
                "cxx": [
                    "-O2",
                    "-g0",
                    "-Wall",
                    "-fvisibility=hidden",
                    "-DTORCH_TARGET_VERSION=0x020a000000000000",
                ]
            },
            # A g++ that links its C++ runtime statically must not share half of it with the runtime
            # that torch brought: seen as a crash while the text of an error was formatted.
            extra_link_args=["-Wl,--exclude-libs,ALL"],
        )
    ],
    # without ninja: one tool less to install, and the build takes seconds
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=False)},
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if LIMITED_API else {},
)
