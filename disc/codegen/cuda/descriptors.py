"""What the device is told of each version: constants `ral_gpu_kernel` (ral.h) in the code section, and the GPU's code that they point to;
of products of the GPU's library `ral_gpu_product`.

    @loop_0_v0 = {abi, threads, shared, cluster, scratch, fault, images, parameters, "kernel", {{90, 0, @image_0, 17368}}, "\\08\\08\\04"}

Equal code is there once, whichever kernels have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disc.artifact.manifest import DTYPES
from disc.codegen.cuda.assemble import PORTABLE
from disc.codegen.cuda.cubin import Cubin
from disc.codegen.cuda.kernel import DeviceVersion
from disc.codegen.cuda.names import NAME
from disc.codegen.cuda.products import LibraryProduct

ABI = 2  # of ral_gpu_kernel
PRODUCT_ABI = 3  # of ral_gpu_product
ADDRESS = 128  # RAL_GPU_ADDRESS
ALIGNMENT = 64  # bytes: of images
_IMAGE = "!llvm.struct<(i32, i32, ptr, i64)>"  # ral_gpu_image
_PRODUCT = f"!llvm.struct<({', '.join(['i32'] * 11)})>"  # ral_gpu_product
_KERNEL = "!llvm.struct<(i32, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr)>"  # ral_gpu_kernel


def descriptor_source(versions: Mapping[str, DeviceVersion], cubins: Mapping[str, Cubin], architecture: int) -> str:
    """MLIR text of the constants of versions by their names. cubins: by `DeviceVersion.key`."""
    writer = _Writer(architecture)
    for name, version in versions.items():
        if version.product is not None:
            writer.product(name, version.product, len(version.parameters))
        else:
            writer.kernel(name, version, cubins[version.key])
    return "\n".join([*writer.lines, "func.func @anchor() {", "return", "}"]) + "\n"  # a module is compiled by asking for a function


class _Writer:
    def __init__(self, architecture: int) -> None:
        self.architecture = architecture
        self.lines: list[str] = []
        self._bytes: dict[bytes, str] = {}  # content → name
        self._images: dict[tuple[str, ...], str] = {}

    def kernel(self, name: str, version: DeviceVersion, cubin: Cubin) -> None:
        """The description of a version."""
        sizes = [each.size + (ADDRESS if each.type[0] == "*" else 0) for each in version.parameters]
        names = [each.name for each in version.parameters]
        fault = names.index("fault") if "fault" in names else -1
        images = [(self.architecture, 0, cubin.code)]
        images += [(PORTABLE, 1, cubin.ptx.encode() + b"\0")] if cubin.ptx else []
        numbers = (ABI, cubin.threads, cubin.shared, cubin.cluster, cubin.scratch, fault, len(images), len(sizes))
        pointers = (self.constant(NAME.encode() + b"\0"), self.images(images), self.constant(bytes(sizes)))
        fields = [*(_number(each, 32) for each in numbers), *map(_address, pointers)]
        self.structure(f"external hidden constant @{name}", _KERNEL, {str(place): field for place, field in enumerate(fields)})

    def product(self, name: str, product: LibraryProduct, parameters: int) -> None:
        """The description of a product. parameters: slots before its sizes."""
        left, right, result = product.left, product.right, product.result
        elements = [DTYPES.index(each.element) for each in (left, result)]
        places = (left.place, right.place, product.bias, result.place)
        numbers = (PRODUCT_ABI, parameters, *places, *elements, int(left.apart), int(right.apart), int(product.tf32))
        fields = {str(place): _number(each, 32) for place, each in enumerate(numbers)}
        self.structure(f"external hidden constant @{name}", _PRODUCT, fields)

    def images(self, images: Sequence[tuple[int, int, bytes]]) -> str:
        """The name of their table: architecture, whether it is text, the code of each."""
        names = tuple(self.constant(data) for _, _, data in images)
        if names not in self._images:
            self._images[names] = f"images_{len(self._images)}"
            fields: dict[str, str] = {}
            for place, (name, (architecture, text, data)) in enumerate(zip(names, images, strict=True)):
                entry = (_number(architecture, 32), _number(text, 32), _address(name), _number(len(data), 64))
                fields |= {f"{place}, {number}": field for number, field in enumerate(entry)}
            type_ = f"!llvm.array<{len(images)} x {_IMAGE.removeprefix('!llvm.')}>"
            self.structure(f"internal constant @{self._images[names]}", type_, fields)
        return self._images[names]

    def constant(self, content: bytes) -> str:
        """The name of bytes."""
        if content not in self._bytes:
            self._bytes[content] = f"bytes_{len(self._bytes)}"
            head = f'llvm.mlir.global internal constant @{self._bytes[content]}("{_text(content)}")'
            self.lines.append(f"{head} {{alignment = {ALIGNMENT} : i64}} : !llvm.array<{len(content)} x i8>")
        return self._bytes[content]

    def structure(self, head: str, type_: str, fields: Mapping[str, str]) -> None:
        """A global. fields: by their places in it, the ops that make them."""
        lines, last = [f"llvm.mlir.global {head}() : {type_} {{", f"  %0 = llvm.mlir.undef : {type_}"], 0
        for place, field in fields.items():
            lines += [f"  %{last + 1} = {field}", f"  %{last + 2} = llvm.insertvalue %{last + 1}, %{last}[{place}] : {type_}"]
            last += 2
        self.lines += [*lines, f"  llvm.return %{last} : {type_}", "}"]


def _number(value: int, bits: int) -> str:
    return f"llvm.mlir.constant({value} : i{bits}) : i{bits}"


def _address(name: str) -> str:
    return f"llvm.mlir.addressof @{name} : !llvm.ptr"


_ESCAPED = [chr(value) if 32 <= value < 127 and chr(value) not in '"\\' else f"\\{value:02X}" for value in range(256)]


def _text(content: bytes) -> str:
    """As MLIR writes bytes in a string."""
    return "".join(map(_ESCAPED.__getitem__, content))
