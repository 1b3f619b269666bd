"""Compile every kernel for GPUs of a compute capability without one, and print the bytes that do not fit into registers.

python tests/functional/gpu_compilation.py 90
"""
# pyright: basic, reportMissingImports=false

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from bayesify.native.gpu import channel_kernels, gaussian_kernels, hadamard, hadamard_kernels

_PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
_TYPES = dict.fromkeys(("rows", "blocks", "tiles", "n", "channels", "positions", "stride", "step"), "i32")
_TYPES |= dict.fromkeys(("half", "constant", "least"), "fp32") | {"kls": "*fp64", "table": "*fp64"}


def spilled(kernel, capability, warps=4, **constants):
    """Bytes that the assembler stores because registers are missing. Triton makes integers of 1 constants, too."""
    signature = {name: "constexpr" if name in constants else _TYPES.get(name, "*fp32") for name in kernel.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.startswith("*")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(compiled.asm["ptx"])
        file.flush()
        architecture = re.search(r"^\.target (\w+)", compiled.asm["ptx"], re.MULTILINE)[1]
        command = [_PTXAS, "-v", "--gpu-name", architecture, file.name, "-o", file.name + ".cubin"]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        Path(file.name + ".cubin").unlink()
    return int(re.search(r"(\d+) bytes spill stores", output)[1])


def main(capability):
    for name in ("fwht", "layer", "layer_gradient"):
        largest = hadamard.LARGEST_ROW if name == "fwht" else hadamard.LARGEST_LAYER
        for n in (16, 512, hadamard.LARGEST_PRODUCTS[name], largest):
            sizes, warps = hadamard.sizes(hadamard.tile_rows(128, n), n, name)
            kernel = getattr(hadamard_kernels, name)
            print(name, n, spilled(kernel, capability, warps, **sizes))
            ones = {argument: 1 for argument in ("rows", "blocks", "tiles") if argument in kernel.arg_names}
            print(name, n, spilled(kernel, capability, warps, **sizes, **ones))
    for name in ("draw", "variance", "draw_gradient", "variance_gradient", "add_kl_gradient", "reparameterize"):
        print(name, 1024, spilled(getattr(gaussian_kernels, name), capability, BLOCK=1024))
        print(name, 1024, spilled(getattr(gaussian_kernels, name), capability, BLOCK=1024, n=1))
    for name in ("scale", "scale_gradient"):
        for channels, positions in ((1, 1024), (64, 16)):
            kernel = getattr(channel_kernels, name)
            print(name, channels, spilled(kernel, capability, CHANNELS=channels, POSITIONS=positions))
            ones = dict.fromkeys(("channels", "positions", "stride", "step"), 1)
            print(name, channels, spilled(kernel, capability, CHANNELS=channels, POSITIONS=positions, **ones))
    print("log_uniform", 256, spilled(channel_kernels.log_uniform, capability, TERMS=14, BLOCK=256))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
