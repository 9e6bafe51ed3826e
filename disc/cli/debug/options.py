"""The options of `disc debug opt`, for both of its command lines: the one of `disc`, and the quick one of golden tests."""

FILE_HELP = "A file of IR, or - for standard input; lines `// -----` separate modules."
PASSES_HELP = "Names by commas, such as name-dims,resolve-broadcasts; mlir:NAME is a pass of MLIR."
STAGE_HELP = "Check that the result is legal at this stage: imported, named or fused."
EMIT_HELP = "Generate code for a module of stage fused, and print it: x86-64-v4, or a GPU such as sm_90."
TARGET_HELP = "What kernels are chosen for, such as x86-64-v4."
LOCATIONS_HELP = "Print locations."
DEFAULT_TARGET = "x86-64-v3"
