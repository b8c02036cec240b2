# src/tensor: dtypes, shapes, names; safetensors, npy.
libgfs_core_a_SOURCES += \
	src/tensor/dtype.h \
	src/tensor/hf.c src/tensor/hf.h \
	src/tensor/jsontext.c src/tensor/jsontext.h \
	src/tensor/npy.c src/tensor/npy.h \
	src/tensor/safetensors.c src/tensor/safetensors.h \
	src/tensor/tensor.c src/tensor/tensor.h
