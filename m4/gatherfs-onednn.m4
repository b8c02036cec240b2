# GFS_ONEDNN_TRY(LIBS, [FOUND])
# -----------------------------
# Whether a program that sets the threads of oneDNN links with LIBS.
AC_DEFUN([GFS_ONEDNN_TRY], [
  gfs_saved_libs=$LIBS
  LIBS="$1 $LIBS"
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[
#include <dnnl.h>
#if DNNL_VERSION_MAJOR != 2 && DNNL_VERSION_MAJOR != 3
#error version
#endif
#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
void omp_set_num_threads(int);
#elif DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_SEQ
#error threads
#endif
]], [[
#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
omp_set_num_threads(1);
#endif
return dnnl_version()->major != DNNL_VERSION_MAJOR;
]])], [$2])
  LIBS=$gfs_saved_libs
])

# GFS_WITH_ONEDNN
# ---------------
# --with-onednn=yes|no|auto: have_onednn, ONEDNN_LIBS, HAVE_ONEDNN in config.h. Version 2 or 3, built
# with OpenMP or without threads. Debian's has no pkg-config file; another's is found by CPPFLAGS and
# LDFLAGS.
AC_DEFUN([GFS_WITH_ONEDNN], [
  GFS_ARG_WITH([onednn], [bf16 on processors that multiply it])
  have_onednn=no
  ONEDNN_LIBS=
  AS_IF([test "x$with_onednn" != xno],
    [AC_MSG_CHECKING([for oneDNN])
     for gfs_libs in "-ldnnl" "-ldnnl -lgomp" "-ldnnl -lomp"; do
       AS_IF([test $have_onednn = no],
         [GFS_ONEDNN_TRY([$gfs_libs], [have_onednn=yes; ONEDNN_LIBS=$gfs_libs])])
     done
     AC_MSG_RESULT([$have_onednn])
     AS_IF([test "x$with_onednn$have_onednn" = xyesno],
       [AC_MSG_ERROR([--with-onednn=yes, but no oneDNN 2 or 3 with OpenMP or without threads (Debian: apt-get install libdnnl-dev)])])])
  AC_SUBST([ONEDNN_LIBS])
  AS_IF([test $have_onednn = yes],
    [AC_DEFINE([HAVE_ONEDNN], [1], [Define to 1 if built with oneDNN.])])
])
