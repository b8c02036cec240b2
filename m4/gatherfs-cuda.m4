# GFS_CUDA_FIND
# -------------
# Where the CUDA toolkit is: gfs_cuda_dir, CUDA_CFLAGS (headers), gfs_cuda_libdir, NVCC. A folder given
# to --with-cuda is the only one that is looked at; else $CUDA_HOME, that of the nvcc in PATH, and
# /usr/local/cuda. gfs_cuda_why: what is missing first; empty if nothing is. gfs_cuda_headers: yes
# where the headers alone were found.
AC_DEFUN([GFS_CUDA_FIND], [
  AC_ARG_VAR([CUDA_HOME], [folder of the CUDA toolkit])
  AC_ARG_VAR([NVCC], [compiler of the CUDA toolkit])
  AC_ARG_VAR([GFS_CUDA_ARCHS],
    [GPU architectures to build for, and PTX of the last for newer ones ("80 90 100")])
  : "${GFS_CUDA_ARCHS=80 90 100}"
  gfs_nvcc_in_path=`command -v nvcc`
  AS_CASE([$with_cuda],
    [/*], [gfs_cuda_dirs=$with_cuda],
    [gfs_cuda_dirs="$CUDA_HOME ${gfs_nvcc_in_path%/bin/nvcc} /usr/local/cuda"])
  gfs_cuda_dir=
  gfs_cuda_headers=no
  for gfs_dir in $gfs_cuda_dirs; do
    AS_IF([test -f "$gfs_dir/include/cuda_runtime_api.h" && test -f "$gfs_dir/include/cublasLt.h"],
      [gfs_cuda_dir=$gfs_dir; gfs_cuda_headers=yes; break])
  done
  AS_CASE([$gfs_cuda_dir],
    [''|/usr], [CUDA_CFLAGS=],
    [CUDA_CFLAGS="-isystem $gfs_cuda_dir/include"])

  gfs_cuda_libdir=
  gfs_multiarch=`$CC -print-multiarch 2>/dev/null`
  for gfs_dir in "$gfs_cuda_dir/lib64" "$gfs_cuda_dir/lib" "$gfs_cuda_dir/lib/$gfs_multiarch"; do
    AS_IF([test -f "$gfs_dir/libcudart_static.a" && test -f "$gfs_dir/libcublasLt.so"],
      [gfs_cuda_libdir=$gfs_dir; break])
  done
  AS_IF([test -z "$NVCC" && test -x "$gfs_cuda_dir/bin/nvcc"], [NVCC=$gfs_cuda_dir/bin/nvcc])
  AS_IF([test $gfs_cuda_headers = no],
      [gfs_cuda_why="cuda_runtime_api.h and cublasLt.h not found in the include folder of: $gfs_cuda_dirs"],
    [test -z "$NVCC"], [gfs_cuda_why="no nvcc in $gfs_cuda_dir/bin"],
    [test -z "$gfs_cuda_libdir"],
      [gfs_cuda_why="libcudart_static.a and libcublasLt.so not found together in $gfs_cuda_dir/lib64 or lib"],
    [gfs_cuda_why=])
])

# GFS_LIBDIR_FLAGS(VARIABLE, FOLDER)
# ----------------------------------
# Sets VARIABLE so that libraries are found in FOLDER, also when the plugin is opened: the toolkit is
# seldom where the loader looks.
AC_DEFUN([GFS_LIBDIR_FLAGS], [
  AS_CASE([$2], [/usr/lib*|/lib*], [$1=], [$1="-L$2 -Wl,-rpath,$2"])
])

# GFS_CUDA_TRY_NVCC
# -----------------
# Sets gfs_cuda_why unless nvcc makes code for every one of GFS_CUDA_ARCHS with this host compiler.
AC_DEFUN([GFS_CUDA_TRY_NVCC], [
  gfs_cuda_gencode=
  gfs_cuda_targets=
  for gfs_arch in $GFS_CUDA_ARCHS; do
    AS_VAR_APPEND([gfs_cuda_gencode], [" -gencode arch=compute_$gfs_arch,code=sm_$gfs_arch"])
    AS_VAR_APPEND([gfs_cuda_targets], [" sm_$gfs_arch"])
  done
  AS_VAR_APPEND([gfs_cuda_gencode], [" -gencode arch=compute_$gfs_arch,code=compute_$gfs_arch"])
  gfs_cuda_targets=${gfs_cuda_targets# }
  AC_MSG_CHECKING([whether $NVCC makes $gfs_cuda_targets])
  AS_ECHO(["__global__ void kernel(float *p) { *p = 1; }"]) >conftest.cu
  AS_IF([AC_TRY_COMMAND([$NVCC -std=c++17 $gfs_cuda_gencode -Xcompiler -fPIC -c conftest.cu -o conftest.o 1>&AS_MESSAGE_LOG_FD 2>&1])],
    [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     gfs_cuda_why="$NVCC makes no code for $gfs_cuda_targets (see config.log, and GFS_CUDA_ARCHS)"])
  rm -f conftest.cu conftest.o
])

# GFS_WITH_CUDA
# -------------
# --with-cuda=yes|no|auto|DIR: have_cuda; CUDA_CFLAGS, CUDA_LIBS, NVCC, NVCC_FLAGS, NVCC_SPILLS, and the
# conditional HAVE_CUDA: the plugin gatherfs_cuda.so is built. Nothing else of a build depends on it.
AC_DEFUN([GFS_WITH_CUDA], [
  AC_ARG_WITH([cuda],
    [AS_HELP_STRING([--with-cuda=yes|no|auto|DIR], [build the plugin for NVIDIA GPUs (auto)])],
    [], [with_cuda=auto])
  AS_CASE([$with_cuda],
    [yes|no|auto|/*], [],
    [AC_MSG_ERROR([--with-cuda=$with_cuda: expected yes, no, auto or the folder of a CUDA toolkit])])
  GFS_CUDA_FIND
  have_cuda=no
  AS_IF([test "x$with_cuda" = xno], [gfs_cuda_why="--without-cuda"],
    [test -z "$gfs_cuda_why"], [GFS_CUDA_TRY_NVCC])
  AS_IF([test -z "$gfs_cuda_why"], [have_cuda=yes],
    [AS_CASE([$with_cuda], [no|auto], [],
      [AC_MSG_ERROR([--with-cuda=$with_cuda, but $gfs_cuda_why; install a CUDA toolkit of 12.8 or newer with nvcc, cudart and cublas (NVIDIA: apt-get install cuda-toolkit-13-0), or name its folder])])])
  GFS_LIBDIR_FLAGS([CUDA_LIBS], [$gfs_cuda_libdir])
  CUDA_LIBS="$gfs_cuda_libdir/libcudart_static.a $CUDA_LIBS -lcublasLt -lm -lrt -ldl"
  NVCC_FLAGS="-std=c++17 -O3 $gfs_cuda_gencode"
  AC_SUBST([CUDA_CFLAGS])
  AC_SUBST([CUDA_LIBS])
  AC_SUBST([NVCC_FLAGS])
  AS_IF([test $gfs_cuda_headers = yes],
    [gfs_version=`sed -n 's/^@%:@define CUDART_VERSION  *//p' "$gfs_cuda_dir/include/cuda_runtime_api.h"`
     gfs_cuda_version=`expr "$gfs_version" / 1000`.`expr "$gfs_version" % 1000 / 10`])
  # A register that is spilled is an error where it is known that none must be: another compiler, or
  # another architecture, may need one more, which costs time and is not wrong.
  NVCC_SPILLS="-Xptxas -warn-spills,-Werror"
  AS_CASE([$gfs_cuda_version], [13.0], [], [NVCC_SPILLS="-Xptxas -warn-spills"])
  for gfs_arch in $GFS_CUDA_ARCHS; do
    AS_CASE([$gfs_arch], [80|90|100], [], [NVCC_SPILLS="-Xptxas -warn-spills"])
  done
  AC_SUBST([NVCC_SPILLS])
  AC_DEFINE_UNQUOTED([GFS_CUDA_VERSION], ["$gfs_cuda_version"], [Version of the CUDA headers.])
  AC_DEFINE_UNQUOTED([GFS_CUDA_TARGETS], ["$gfs_cuda_targets"], [What the GPU code was made for.])
  AM_CONDITIONAL([HAVE_CUDA], [test "x$have_cuda" = xyes])
])

# GFS_WITH_NCCL
# -------------
# --with-nccl=yes|no|auto|DIR: have_nccl, NCCL_CFLAGS, NCCL_LIBS and the conditional HAVE_NCCL: the
# plugin has collectives between GPUs. Without a folder NCCL is looked for in that of CUDA and in the
# system. gfs_nccl_header: the header was found, be there a library or not.
AC_DEFUN([GFS_WITH_NCCL], [
  AC_ARG_WITH([nccl],
    [AS_HELP_STRING([--with-nccl=yes|no|auto|DIR], [let GPUs talk to each other by NCCL (auto)])],
    [], [with_nccl=auto])
  AS_CASE([$with_nccl],
    [yes|no|auto|/*], [],
    [AC_MSG_ERROR([--with-nccl=$with_nccl: expected yes, no, auto or the folder of NCCL])])
  AS_CASE([$with_nccl],
    [/*], [gfs_nccl_dirs=$with_nccl],
    [gfs_nccl_dirs="$gfs_cuda_dir /usr/local /usr"])
  gfs_nccl_header=
  gfs_nccl_libdir=
  for gfs_dir in $gfs_nccl_dirs; do
    AS_IF([test -f "$gfs_dir/include/nccl.h"], [gfs_nccl_header=$gfs_dir/include; break])
  done
  for gfs_dir in $gfs_nccl_dirs; do
    for gfs_lib in lib64 lib "lib/$gfs_multiarch"; do
      AS_IF([test -z "$gfs_nccl_libdir" && test -f "$gfs_dir/$gfs_lib/libnccl.so"],
        [gfs_nccl_libdir=$gfs_dir/$gfs_lib])
    done
  done
  AS_CASE([$gfs_nccl_header],
    [''|/usr/include|/usr/local/include|"$gfs_cuda_dir/include"], [NCCL_CFLAGS=],
    [NCCL_CFLAGS="-isystem $gfs_nccl_header"])
  GFS_LIBDIR_FLAGS([NCCL_LIBS], [$gfs_nccl_libdir])
  NCCL_LIBS="$NCCL_LIBS -lnccl"

  have_nccl=no
  AS_IF([test "x$with_nccl" = xno], [gfs_nccl_why="--without-nccl"],
    [test "x$have_cuda" = xno], [gfs_nccl_why="no CUDA"],
    [test -z "$gfs_nccl_header"], [gfs_nccl_why="nccl.h not found in the include folder of: $gfs_nccl_dirs"],
    [test -z "$gfs_nccl_libdir"], [gfs_nccl_why="libnccl.so not found in the lib folder of: $gfs_nccl_dirs"],
    [GFS_NCCL_CHECK_VERSION])
  AS_IF([test "x$have_nccl" = xno],
    [AS_CASE([$with_nccl], [no|auto], [],
      [AC_MSG_ERROR([--with-nccl=$with_nccl, but $gfs_nccl_why; install NCCL 2.18 or newer (NVIDIA: apt-get install libnccl-dev), or name its folder])])])
  AC_SUBST([NCCL_CFLAGS])
  AC_SUBST([NCCL_LIBS])
  AM_CONDITIONAL([HAVE_NCCL], [test "x$have_nccl" = xyes])
])

# The first with all that is asked of a non-blocking communicator.
AC_DEFUN([GFS_NCCL_CHECK_VERSION], [
  gfs_saved_cppflags=$CPPFLAGS
  CPPFLAGS="$CPPFLAGS $CUDA_CFLAGS $NCCL_CFLAGS"
  AC_MSG_CHECKING([whether NCCL is 2.18 or newer])
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <nccl.h>
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 18, 0)
#error old
#endif]], [])],
    [AC_MSG_RESULT([yes]); have_nccl=yes],
    [AC_MSG_RESULT([no]); gfs_nccl_why="that in $gfs_nccl_header is too old"])
  CPPFLAGS=$gfs_saved_cppflags
])

# GFS_ENABLE_EMULATION
# --------------------
# --enable-emulation=yes|no|auto: the conditional GFS_EMULATION, and GFS_EMULATION in config.h: the
# GPU's sources are also built for this machine's processor, on doubles of the CUDA libraries, and
# are tested so. Needs a C++ compiler and the headers of CUDA and NCCL, but none of their libraries.
AC_DEFUN([GFS_ENABLE_EMULATION], [
  AC_ARG_ENABLE([emulation],
    [AS_HELP_STRING([--enable-emulation=yes|no|auto],
      [test what runs on GPUs without one; for developers (no)])],
    [], [enable_emulation=no])
  AS_CASE([$enable_emulation],
    [yes|no|auto], [],
    [AC_MSG_ERROR([--enable-emulation=$enable_emulation: expected yes, no or auto])])
  AC_LANG_PUSH([C++])
  AC_MSG_CHECKING([whether $CXX compiles C++17])
  gfs_saved_cxxflags=$CXXFLAGS
  CXXFLAGS="$CXXFLAGS -std=c++17"
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#if __cplusplus < 201703L
#error old
#endif]], [])],
    [gfs_have_cxx=yes], [gfs_have_cxx=no])
  AC_MSG_RESULT([$gfs_have_cxx])
  CXXFLAGS=$gfs_saved_cxxflags
  AC_LANG_POP([C++])
  gfs_emulation=no
  AS_IF([test "x$enable_emulation" = xno], [gfs_emulation_why="--enable-emulation was not given"],
    [test $gfs_have_cxx = no], [gfs_emulation_why="no C++ compiler (Debian: apt-get install g++)"],
    [test $gfs_cuda_headers = no],
      [gfs_emulation_why="no CUDA headers in the include folder of: $gfs_cuda_dirs"],
    [test -z "$gfs_nccl_header"],
      [gfs_emulation_why="no nccl.h in the include folder of: $gfs_nccl_dirs"],
    [gfs_emulation=yes])
  AS_IF([test "x$enable_emulation$gfs_emulation" = xyesno],
    [AC_MSG_ERROR([--enable-emulation, but $gfs_emulation_why])])
  AS_IF([test $gfs_emulation = yes],
    [AC_DEFINE([GFS_EMULATION], [1], [Define to 1 if there is an emulated GPU for tests.])])
  AM_CONDITIONAL([GFS_EMULATION], [test $gfs_emulation = yes])
])
