"""Machine code for contractions: packing, micro-kernel, GEMM, AMX."""
