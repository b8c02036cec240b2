# src/tensor: dtypes, shapes, names; safetensors, npy.
libgfs_core_a_SOURCES +=
